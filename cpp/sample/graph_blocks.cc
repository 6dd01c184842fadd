#include "sample/graph_blocks.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "layout/blocks.h"
#include "sample/waiting.h"

namespace outcrop::sample {
namespace {

// In flight: as much fills the drive, see benchmarks/results/read_rows.md.
constexpr uint64_t kAheadBytes = 8 << 20;
constexpr uint64_t kLeastAhead = 2, kMostAhead = 256;

std::unique_lock<std::timed_mutex> Lease(std::timed_mutex& mutex, const threads::Pool& pool) {
  std::unique_lock lock(mutex, std::defer_lock);
  while (!lock.try_lock_for(kPatience)) {
    if (pool.cancelled()) throw threads::Cancelled();
  }
  return lock;
}

// At most half of the slots: the others are for blocks that stay.
uint64_t MostAhead(uint64_t block_bytes, uint64_t slots) {
  return std::min(std::clamp(kAheadBytes / block_bytes, kLeastAhead, kMostAhead), slots / 2);
}

}  // namespace

uint64_t BlockSet::Next(uint64_t from) const {
  uint64_t at = from / 64;
  if (at >= words_.size()) return kNone;
  uint64_t word = words_[at] & ~uint64_t{0} << from % 64;
  while (word == 0) {
    if (++at == words_.size()) return kNone;
    word = words_[at];
  }
  return at * 64 + static_cast<uint64_t>(std::countr_zero(word));
}

GraphBlocks::GraphBlocks(const Source& source, uint64_t buffer_blocks)
    : source_(source),
      memory_(std::min(buffer_blocks, std::max<uint64_t>(source.last_nodes.size(), 2)) *
              source.block_bytes),
      slots_(memory_.size() / source.block_bytes) {
  const auto check = [](bool good, const char* what) {
    if (!good) throw std::invalid_argument(what);
  };
  const std::span<const int64_t> last = source.last_nodes;
  check(std::is_sorted(last.begin(), last.end()), "the index of the blocks descends");
  check((last.empty() ? 0 : last.back() + 1) == source.num_nodes && (last.empty() || last[0] >= 0),
        "the index of the blocks is of another number of nodes");
  const uint64_t size = source.file->size();
  check(source.base <= size && last.size() <= (size - source.base) / source.block_bytes,
        "the file of the blocks is shorter than its index says");
}

uint64_t GraphBlocks::BlockOf(int64_t node, uint64_t from) const {
  const auto begin = source_.last_nodes.begin();
  const auto first = begin + static_cast<ptrdiff_t>(from);
  if (node <= *first) return from;
  return static_cast<uint64_t>(std::lower_bound(first, source_.last_nodes.end(), node) - begin);
}

uint64_t GraphBlocks::memory_bytes() const {
  constexpr uint64_t kPerSlot = sizeof(Slot) + 64;  // and an entry of the table
  return memory_.size() + source_.last_nodes.size_bytes() + slots_.size() * kPerSlot;
}

GraphBlocks::Counts GraphBlocks::counts() const {
  const std::lock_guard lock(counts_mutex_);
  return counts_;
}

BlockSweep::BlockSweep(GraphBlocks& blocks, BlockSet& wanted, const threads::Pool& pool)
    : blocks_(blocks),
      wanted_(wanted),
      pool_(pool),
      lease_(Lease(blocks.sweeping_, pool)),
      most_ahead_(MostAhead(blocks.block_bytes(), blocks.slots_.size())) {
  for (size_t slot = 0; slot < blocks.slots_.size(); ++slot) {
    const GraphBlocks::Slot& here = blocks.slots_[slot];
    if (here.state == GraphBlocks::State::kFree) {
      free_.push_back(slot);
    } else if (wanted.Has(here.block)) {
      kept_.insert(here.block);
    } else {
      victims_.push_back({slot, here.used});
    }
  }
  std::sort(victims_.begin(), victims_.end(),
            [](const Victim& a, const Victim& b) { return a.used < b.used; });
}

BlockSweep::~BlockSweep() {
  for (const GraphBlocks::Slot& slot : blocks_.slots_) {
    if (slot.group != nullptr && slot.group->transfer != nullptr) slot.group->transfer->Cancel();
  }
  for (size_t slot = 0; slot < blocks_.slots_.size(); ++slot) {
    if (blocks_.slots_[slot].state == GraphBlocks::State::kLoading) Forget(slot);
  }
  wanted_.Clear();
  const std::lock_guard lock(blocks_.counts_mutex_);
  blocks_.counts_.found += counts_.found;
  blocks_.counts_.read += counts_.read;
}

void BlockSweep::Want(uint64_t block) {
  wanted_.Add(block);
  const auto found = blocks_.where_.find(block);
  if (found == blocks_.where_.end()) {
    from_ = std::min(from_, block);
  } else if (!blocks_.slots_[found->second].ahead) {
    kept_.insert(block);
  }
}

const std::byte* BlockSweep::Next(uint64_t* number) {
  if (pool_.cancelled()) throw threads::Cancelled();
  uint64_t before = 0;
  if (current_ != kNoSlot) {
    const GraphBlocks::Slot& last = blocks_.slots_[current_];
    before = last.block + 1;
    victims_.push_back({current_, last.used});
    current_ = kNoSlot;
  }
  *number = wanted_.Next(before);
  if (*number == BlockSet::kNone) return nullptr;
  ReadAhead(blocks_.where_.count(*number) == 0);
  current_ = blocks_.where_.at(*number);
  GraphBlocks::Slot& here = blocks_.slots_[current_];
  if (here.ahead) {
    here.ahead = false;
    --ahead_;
    ++counts_.read;
  } else {
    kept_.erase(*number);
    ++counts_.found;
  }
  Land(current_);
  here.used = ++blocks_.clock_;
  wanted_.Remove(*number);
  ReadAhead(false);
  return blocks_.Memory(current_);
}

// Begins to read the next wanted blocks, some at a time: neighbours are one request then.
// `at_once`: the first of them is waited for.
void BlockSweep::ReadAhead(bool at_once) {
  if (ahead_ > most_ahead_ / 2 && !at_once) return;
  std::vector<size_t> slots;
  uint64_t block = wanted_.Next(from_);
  for (; block != BlockSet::kNone; block = wanted_.Next(block + 1)) {
    from_ = block;
    if (blocks_.where_.count(block) == 0) {
      if (ahead_ >= most_ahead_ && !(at_once && slots.empty())) break;
      const size_t slot = MakeRoom(block);
      if (slot == kNoSlot) break;
      blocks_.slots_[slot].state = GraphBlocks::State::kLoading;
      blocks_.slots_[slot].block = block;
      blocks_.slots_[slot].ahead = true;
      blocks_.where_[block] = slot;
      ++ahead_;
      slots.push_back(slot);
    }
    from_ = block + 1;
  }
  if (!slots.empty()) Start(slots);
}

void BlockSweep::Start(const std::vector<size_t>& slots) {
  auto group = std::make_shared<GraphBlocks::Group>();
  const auto size = static_cast<int64_t>(blocks_.block_bytes());
  for (const size_t slot : slots) {
    const auto block = static_cast<int64_t>(blocks_.slots_[slot].block);
    group->offsets.push_back(static_cast<int64_t>(blocks_.source_.base) + block * size);
    group->lengths.push_back(size);
    group->places.push_back(static_cast<int64_t>(slot) * size);
    blocks_.slots_[slot].group = group;
  }
  group->transfer = blocks_.engine().Read(
      blocks_.source_.file, disk::ExtentList::Ranges(group->offsets, group->lengths, group->places,
                                                     blocks_.memory_.data()));
}

// A slot for a block that is to be read; kNoSlot: all that there are are wanted sooner.
size_t BlockSweep::MakeRoom(uint64_t block) {
  if (!free_.empty()) {
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  while (!victims_.empty()) {
    const Victim victim = victims_.front();
    victims_.pop_front();
    const GraphBlocks::Slot& slot = blocks_.slots_[victim.slot];
    if (slot.used != victim.used || wanted_.Has(slot.block)) continue;
    Forget(victim.slot);
    return victim.slot;
  }
  if (kept_.empty() || *kept_.rbegin() <= block) return kNoSlot;
  // The one that is wanted last is read again in its turn.
  const uint64_t last = *kept_.rbegin();
  kept_.erase(last);
  const size_t slot = blocks_.where_.at(last);
  Forget(slot);
  return slot;
}

// The slot's block is in memory, and good.
void BlockSweep::Land(size_t slot) {
  GraphBlocks::Slot& here = blocks_.slots_[slot];
  if (here.state == GraphBlocks::State::kLoaded) return;
  WaitFor(*here.group->transfer, pool_);
  const GraphBlocks::Source& source = blocks_.source_;
  const std::string problem =
      layout::BlockProblem({blocks_.Memory(slot), source.block_bytes}, here.block,
                           source.entry_bytes, source.last_nodes[here.block]);
  if (!problem.empty()) throw layout::BadBlock(blocks_.path() + ": " + problem);
  here.state = GraphBlocks::State::kLoaded;
  here.group.reset();
}

// Waits for what may still land in it.
void BlockSweep::Forget(size_t slot) {
  GraphBlocks::Slot& here = blocks_.slots_[slot];
  if (here.group != nullptr && here.group->transfer != nullptr) {
    try {
      here.group->transfer->Wait();
    } catch (...) {  // nobody wants it any more
    }
  }
  blocks_.where_.erase(here.block);
  here = GraphBlocks::Slot{};
}

}  // namespace outcrop::sample
