#include "cache/belady.h"

#include <algorithm>

namespace outcrop::cache {
namespace {

// How far ahead a table's entries are asked for: each is a cache miss of its own, or two.
constexpr size_t kAhead = 16;

// Whoever is kNobody has none.
void PrefetchAhead(const NodeTable& table, std::span<const int64_t> nodes, size_t i) {
  const auto node = [&](size_t at) { return at < nodes.size() ? nodes[at] : Residents::kNobody; };
  const int64_t next = node(i + kAhead), later = node(i + 2 * kAhead);
  if (later != Residents::kNobody) table.PrefetchPlace(later);
  if (next != Residents::kNobody) table.Prefetch(next);
}

}  // namespace

Belady::Belady(int64_t num_nodes, uint32_t slots, bool goes_on)
    : residents_(num_nodes, slots), num_nodes_(num_nodes), goes_on_(goes_on) {
  link_.resize(slots);
}

uint32_t Belady::Mark(std::span<const int64_t> nodes) {
  if (!touched_) touched_.emplace(num_nodes_);
  touched_->Add(nodes);
  return touched_->count();
}

void Belady::Begin(uint32_t batches, int64_t expected_nodes) {
  residents_.Close();
  batches_ = batches;
  if (touched_) {
    touched_->Seal();
    uses_.emplace(*touched_);
  } else {
    uses_.emplace(num_nodes_, expected_nodes);
  }
  buckets_.resize(batches + size_t{1});
  wanted_.resize(batches + size_t{1});
  for (size_t k = 0; k <= batches; ++k) {
    buckets_[k] = Bucket();
    wanted_[k] = 0;
  }
}

void Belady::LookBack(uint32_t t, std::span<const int64_t> nodes, std::span<uint32_t> next) {
  NodeTable& uses = *uses_;
  for (size_t i = 0; i < nodes.size(); ++i) {
    PrefetchAhead(uses, nodes, i);
    const uint32_t found = uses.Exchange(nodes[i], t);
    next[i] = found == t ? kTwin : found == NodeTable::kNone ? batches_ : found;
  }
}

void Belady::TurnAround() {
  const std::span<const int64_t> nodes = residents_.nodes();
  for (uint32_t slot = 0; slot < nodes.size(); ++slot) {
    PrefetchAhead(*uses_, nodes, slot);
    if (nodes[slot] == Residents::kNobody) continue;
    const uint32_t first = uses_->Get(nodes[slot]);
    Push(slot, first == NodeTable::kNone ? batches_ : first);
  }
  uses_.reset();
  residents_.Open(touched_ ? &*touched_ : nullptr);
}

bool Belady::Fill(uint32_t t, std::span<const int64_t> nodes) {
  NodeTable& table = residents_.table();
  for (size_t i = 0; i < nodes.size() && residents_.free() > 0; ++i) {
    PrefetchAhead(table, nodes, i);
    if (table.Get(nodes[i]) == NodeTable::kNone) Push(residents_.Add(nodes[i]), t);
  }
  return residents_.free() > 0;
}

void Belady::Step(uint32_t t, std::span<const int64_t> nodes, std::span<const uint32_t> next,
                  std::span<int32_t> slots, Changes& changes) {
  changes.Clear();
  leaving_.clear();
  Find(t, nodes, next, slots);
  MakeRoom(t);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (slots[i] == kMiss || next[i] == kTwin) continue;
    const uint32_t slot = static_cast<uint32_t>(slots[i]);
    if (Stays(next[i])) {
      Push(slot, next[i]);
    } else {
      leaving_.push_back(slot);
    }
  }
  residents_.Remove(leaving_);
  for (size_t i = 0; i < nodes.size(); ++i) {
    PrefetchAhead(residents_.table(), nodes, i);
    if (slots[i] != kMiss || !Wanted(next[i]) || !Stays(next[i])) continue;
    const uint32_t slot = residents_.Add(nodes[i]);
    Push(slot, next[i]);
    changes.Add(i, slot);
  }
}

// Looks the batch up, and counts by next use who would like to stay or to enter.
void Belady::Find(uint32_t t, std::span<const int64_t> nodes, std::span<const uint32_t> next,
                  std::span<int32_t> slots) {
  for (size_t k = t + size_t{1}; k <= batches_; ++k) wanted_[k] = 0;
  const NodeTable& table = residents_.table();
  for (size_t i = 0; i < nodes.size(); ++i) {
    PrefetchAhead(table, nodes, i);
    const uint32_t slot = table.Get(nodes[i]);
    const bool found = slot != NodeTable::kNone;
    slots[i] = found ? static_cast<int32_t>(slot) : kMiss;
    if (next[i] != kTwin && (found || Wanted(next[i]))) ++wanted_[next[i]];
  }
  buckets_[t] = Bucket();  // all of them are in the batch, and were counted
}

// Finds the limit; what is beyond it leaves.
void Belady::MakeRoom(uint32_t t) {
  room_ = residents_.slots();
  limit_ = t + 1;
  while (limit_ <= batches_) {
    const uint64_t all = uint64_t{buckets_[limit_].count} + wanted_[limit_];
    if (all > room_) break;
    room_ -= static_cast<uint32_t>(all);
    ++limit_;
  }
  if (limit_ > batches_) return;
  for (size_t k = limit_ + size_t{1}; k <= batches_; ++k) {
    EvictFrom(buckets_[k], buckets_[k].count);
  }
  // Those that are there already cost no copy, so they come first.
  Bucket& last = buckets_[limit_];
  if (last.count > room_) EvictFrom(last, last.count - room_);
  room_ -= last.count;
}

void Belady::EvictFrom(Bucket& bucket, uint32_t count) {
  for (; count > 0; --count) {
    const uint32_t slot = bucket.first;
    bucket.first = link_[slot];
    --bucket.count;
    leaving_.push_back(slot);
  }
}

void Belady::End() {
  uses_.reset();
  residents_.Close();
  touched_.reset();
}

void Belady::Clear() {
  End();
  residents_.Clear();
}

void Belady::Restore(std::span<const int64_t> nodes) {
  End();
  residents_.Restore(nodes);
}

}  // namespace outcrop::cache
