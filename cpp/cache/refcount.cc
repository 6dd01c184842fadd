#include "cache/refcount.h"

#include <utility>

namespace outcrop::cache {
namespace {

constexpr size_t kAhead = 16;
// Nodes that Expect looks up under one lock: whoever loads rows waits for no more.
constexpr size_t kExpectAtOnce = 4096;

uint32_t Lists(Reuse reuse) {
  return reuse == Reuse::kLeastOften ? UseCounts::kMost + 1 + Lookahead::kPlaces : 1;
}

// body(node) for each different node, with the table's memory asked for in advance.
template <typename Body>
void ForDistinct(std::span<const int64_t> nodes, const NodeTable& table, const Body& body) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) table.Prefetch(nodes[i + kAhead]);
    if (i == 0 || nodes[i] != nodes[i - 1]) body(nodes[i]);
  }
}

}  // namespace

void Claim::Loaded() {
  {
    const std::lock_guard lock(buffer_->mutex_);
    for (int64_t slot : std::span<const int64_t>(loads_.slots)) {
      buffer_->slots_[static_cast<size_t>(slot)].state = SlotBuffer::State::kValid;
    }
    DropPrefetched();
  }
  buffer_->loaded_.notify_all();
  loads_ = {};  // a claim may be held for long
}

void Claim::DropPrefetched() {
  if (prefetched_.size() == 0) return;
  for (int64_t slot : std::span<const int64_t>(prefetched_))
    buffer_->Drop(static_cast<uint32_t>(slot));
  prefetched_ = {};
  ++buffer_->releases_;
  buffer_->released_.notify_all();
}

bool Claim::Collect(std::chrono::milliseconds wait) {
  using State = SlotBuffer::State;
  std::unique_lock lock(buffer_->mutex_);
  const auto settled = [&] {
    size_t left = 0;
    for (size_t i = 0; i < awaited_.slots.size(); ++i) {
      const int64_t node = awaited_.nodes[i], slot = awaited_.slots[i];
      State& state = buffer_->slots_[static_cast<size_t>(slot)].state;
      if (state == State::kLoading) {
        awaited_.nodes[left] = node;
        awaited_.slots[left++] = slot;
      } else if (state == State::kEmpty) {
        state = State::kLoading;
        loads_.nodes.push_back(node);
        loads_.slots.push_back(slot);
      }
    }
    awaited_.nodes.resize(left);
    awaited_.slots.resize(left);
    return left == 0 || loads_.slots.size() > 0;
  };
  if (!buffer_->loaded_.wait_for(lock, wait, settled) || loads_.slots.size() > 0) return false;
  awaited_ = {};
  return true;
}

void Claim::Release() {
  if (!buffer_) return;
  if (!home_.Here()) {  // a child's copy: a thread that is gone may have the lock, or wait for it
    [[maybe_unused]] const auto* abandoned = new auto(std::move(buffer_));
    return;
  }
  {
    const std::lock_guard lock(buffer_->mutex_);
    for (int64_t slot : std::span<const int64_t>(loads_.slots)) {
      buffer_->slots_[static_cast<size_t>(slot)].state = SlotBuffer::State::kEmpty;
    }
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (i == 0 || slots_[i] != slots_[i - 1]) buffer_->Drop(static_cast<uint32_t>(slots_[i]));
    }
    DropPrefetched();
    ++buffer_->releases_;
  }
  buffer_->released_.notify_all();
  buffer_->loaded_.notify_all();  // what was given up can be taken over
  buffer_.reset();
}

void Expected::Forget() {
  if (!buffer_) return;
  {
    const std::lock_guard lock(buffer_->mutex_);
    buffer_->ahead_->Close(place_);
    const uint32_t head = buffer_->ExpectedHead(place_);
    for (uint32_t slot; (slot = buffer_->slots_[head].next) != head;) {
      buffer_->Unlink(slot);
      buffer_->Shelve(slot);
    }
  }
  buffer_.reset();
}

SlotBuffer::SlotBuffer(int64_t num_nodes, int64_t num_slots, Reuse reuse,
                       std::optional<RowLayout> layout)
    : num_nodes_(num_nodes), num_slots_(num_slots), layout_(layout), table_(num_nodes, num_slots) {
  if (reuse == Reuse::kLeastOften) {
    counts_.emplace(num_nodes, num_slots);
    ahead_.emplace(num_nodes, num_slots);
  }
  slots_.resize(static_cast<size_t>(num_slots) + Lists(reuse));
  for (uint32_t head = Head(0); head < slots_.size(); ++head) {
    slots_[head] = {kNobody, 0, head, head, State::kEmpty, 0};
  }
  for (uint32_t slot = 0; slot < Head(0); ++slot) {
    slots_[slot] = {kNobody, 0, kNone, kNone, State::kEmpty, 0};
    LinkAfter(slots_[Head(0)].previous, slot);
  }
}

uint64_t SlotBuffer::Bytes(int64_t num_nodes, int64_t num_slots, Reuse reuse) {
  const uint64_t slots = static_cast<uint64_t>(num_slots) + Lists(reuse);
  const bool counted = reuse == Reuse::kLeastOften;
  return NodeTable::Bytes(num_nodes, num_slots) + slots * sizeof(Slot) +
         (counted ? 2 * NodeBytes::Bytes(num_nodes, num_slots) : 0);
}

int64_t SlotBuffer::num_standby() const {
  const std::lock_guard lock(mutex_);
  return standby_;
}

std::optional<Claim> SlotBuffer::Reserve(std::span<const int64_t> nodes,
                                         std::chrono::milliseconds wait, const Expected* expected) {
  // Before the lock, like all that needs no lock.
  Claim claim(shared_from_this());
  claim.slots_.resize(nodes.size());
  claim.slots_.clear();
  const auto end = std::chrono::steady_clock::now() + wait;
  std::unique_lock lock(mutex_);
  for (uint64_t seen = releases_; !Fits(nodes); seen = releases_) {
    if (!released_.wait_until(lock, end, [&] { return releases_ != seen; })) {
      claim.buffer_.reset();
      return std::nullopt;
    }
  }
  Take(nodes, expected, claim);
  return claim;
}

std::optional<Expected> SlotBuffer::Expect(std::span<const int64_t> nodes) {
  if (!ahead_) return std::nullopt;
  std::unique_lock lock(mutex_);
  const std::optional<uint32_t> place = ahead_->Open();
  if (!place) return std::nullopt;
  Expected expected(shared_from_this(), *place);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i % kExpectAtOnce == kExpectAtOnce - 1) {
      lock.unlock();
      lock.lock();
    }
    if (i + kAhead < nodes.size()) {
      ahead_->Prefetch(nodes[i + kAhead]);
      table_.Prefetch(nodes[i + kAhead]);
    }
    // Where it is expected already, it is expected sooner.
    if (!ahead_->Add(nodes[i], *place)) continue;
    const uint32_t slot = table_.Get(nodes[i]);
    if (slot == kNone || slots_[slot].users > 0) continue;
    Unlink(slot);
    Shelve(slot);
  }
  return expected;
}

bool SlotBuffer::Fits(std::span<const int64_t> nodes) const {
  int64_t wanted = 0;  // of those on standby: under their own node, or for another
  ForDistinct(nodes, table_, [&](int64_t node) {
    const uint32_t slot = table_.Get(node);
    wanted += slot == kNone || slots_[slot].users == 0;
  });
  return wanted <= standby_;
}

void SlotBuffer::Take(std::span<const int64_t> nodes, const Expected* expected, Claim& claim) {
  // What is there first: it must not be reused for what is not.
  ForDistinct(nodes, table_, [&](int64_t node) {
    const uint32_t slot = table_.Get(node);
    if (slot != kNone && slots_[slot].users++ == 0) Unlink(slot);
  });
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) {
      table_.Prefetch(nodes[i + kAhead]);
      if (counts_) counts_->Prefetch(nodes[i + kAhead]);
      if (expected) ahead_->Prefetch(nodes[i + kAhead]);
    }
    if (i == 0 || nodes[i] != nodes[i - 1]) {
      claim.slots_.push_back(Use(nodes[i], expected, claim));
      continue;
    }
    const int64_t slot = claim.slots_[i - 1];
    claim.slots_.push_back(slot);
    const bool valid = slots_[static_cast<size_t>(slot)].state == State::kValid;
    ++(valid ? claim.found_ : claim.shared_);
  }
  // Guesses would load more rows in vain than with reason.
  if (layout_ && ahead_ && ahead_->exact()) TakePrefetched(nodes.size() / 2, claim);
  if (counts_ && counts_->due()) {
    counts_->Halve();
    for (uint32_t uses = 1; uses <= UseCounts::kMost; ++uses) JoinLists(Head(uses), Head(uses / 2));
  }
}

uint32_t SlotBuffer::Use(int64_t node, const Expected* expected, Claim& claim) {
  uint32_t slot = table_.Get(node);
  if (slot == kNone) TakeFor(node, slot = LeastWanted());  // Fits has seen that there is one
  if (counts_) slots_[slot].uses = counts_->Add(node);
  if (expected) ahead_->Remove(node, expected->place_);
  State& state = slots_[slot].state;
  if (state == State::kValid) {
    ++claim.found_;
    return slot;
  }
  Claim::Loads& list = state == State::kLoading ? claim.awaited_ : claim.loads_;
  if (state == State::kLoading) ++claim.shared_;
  state = State::kLoading;
  list.nodes.push_back(node);
  list.slots.push_back(slot);
  return slot;
}

void SlotBuffer::TakePrefetched(size_t most, Claim& claim) {
  Claim::Loads& loads = claim.loads_;
  Claim::Loads prefetched;
  ForReadWith(loads.nodes, num_nodes_, *layout_, [&](int64_t node) {
    const uint32_t wait = ahead_->Wait(node);
    if (wait == Lookahead::kPlaces || table_.Get(node) != kNone) return true;
    if (prefetched.nodes.size() == most || standby_ == 0) return false;
    const uint32_t slot = LeastWanted();
    const int64_t other = slots_[slot].node;
    if (other != kNobody && ahead_->Wait(other) <= wait) return true;
    TakeFor(node, slot);
    slots_[slot].uses = (*counts_)[node];
    slots_[slot].state = State::kLoading;
    prefetched.nodes.push_back(node);
    prefetched.slots.push_back(slot);
    return true;
  });
  // Both are ascending: from the end on they are merged in place.
  size_t left = loads.nodes.size(), riding = prefetched.nodes.size();
  loads.nodes.resize(left + riding);
  loads.slots.resize(left + riding);
  for (size_t end = left + riding; riding > 0; --end) {
    const bool rides = left == 0 || prefetched.nodes[riding - 1] > loads.nodes[left - 1];
    const Claim::Loads& from = rides ? prefetched : loads;
    const size_t last = --(rides ? riding : left);
    loads.nodes[end - 1] = from.nodes[last];
    loads.slots[end - 1] = from.slots[last];
  }
  claim.prefetched_ = std::move(prefetched.slots);
}

uint32_t SlotBuffer::LeastWanted() const {
  const auto first = [&](uint32_t head) { return slots_[head].next; };
  const uint32_t most = ahead_ ? UseCounts::kMost : 0;
  for (uint32_t head = Head(0); head <= Head(most); ++head) {
    if (first(head) != head) return first(head);
  }
  for (uint32_t age = 0;; ++age) {
    const uint32_t head = ExpectedHead(ahead_->Latest(age));
    if (first(head) != head) return first(head);
  }
}

void SlotBuffer::TakeFor(int64_t node, uint32_t slot) {
  Unlink(slot);
  Slot& taken = slots_[slot];
  if (taken.node != kNobody) table_.Erase(taken.node);
  taken.node = node;
  taken.users = 1;
  taken.state = State::kEmpty;
  table_.Set(node, slot);
}

void SlotBuffer::Drop(uint32_t slot) {
  Slot& dropped = slots_[slot];
  if (--dropped.users > 0) return;
  if (dropped.state == State::kValid) return Shelve(slot);
  table_.Erase(dropped.node);  // its row never came
  dropped.node = kNobody;
  LinkAfter(Head(0), slot);
}

void SlotBuffer::Shelve(uint32_t slot) {
  const Slot& shelved = slots_[slot];
  const auto soonest = ahead_ ? ahead_->Soonest(shelved.node) : std::nullopt;
  const uint32_t head = soonest ? ExpectedHead(*soonest) : Head(shelved.uses);
  LinkAfter(slots_[head].previous, slot);
}

void SlotBuffer::Unlink(uint32_t slot) {
  const Slot& gone = slots_[slot];
  slots_[gone.previous].next = gone.next;
  slots_[gone.next].previous = gone.previous;
  --standby_;
}

void SlotBuffer::LinkAfter(uint32_t place, uint32_t slot) {
  const uint32_t next = slots_[place].next;
  slots_[slot].previous = place;
  slots_[slot].next = next;
  slots_[place].next = slots_[next].previous = slot;
  ++standby_;
}

void SlotBuffer::JoinLists(uint32_t from, uint32_t to) {
  Slot &source = slots_[from], &target = slots_[to];
  if (source.next == from) return;
  slots_[source.next].previous = target.previous;
  slots_[target.previous].next = source.next;
  slots_[source.previous].next = to;
  target.previous = source.previous;
  source.previous = source.next = from;
}

}  // namespace outcrop::cache
