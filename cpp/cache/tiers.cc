#include "cache/tiers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

namespace outcrop::cache {
namespace {

// 11 bits: 2048 counters of 8 bytes stay in the L1 cache.
constexpr int kDigitBits = 11;
constexpr size_t kBuckets = size_t{1} << kDigitBits;
// How many nodes ahead their places in a table are asked for.
constexpr size_t kAhead = 16;

}  // namespace

std::span<const Entry> EntrySorter::Sort(std::span<const int64_t> nodes) {
  from_.resize(nodes.size());
  to_.resize(nodes.size());
  uint64_t all = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    from_[i] = {static_cast<uint64_t>(nodes[i]), static_cast<uint32_t>(i)};
    all |= from_[i].node;
  }
  const int bits = static_cast<int>(std::bit_width(all));
  for (int shift = 0; shift < bits; shift += kDigitBits) {
    std::array<size_t, kBuckets> place{};
    const auto digit = [shift](const Entry& e) { return (e.node >> shift) & (kBuckets - 1); };
    for (size_t i = 0; i < nodes.size(); ++i) ++place[digit(from_[i])];
    size_t sum = 0;
    for (size_t& p : place) sum += std::exchange(p, sum);
    for (size_t i = 0; i < nodes.size(); ++i) to_[place[digit(from_[i])]++] = from_[i];
    std::swap(from_, to_);
  }
  return from_;
}

AccessCounts::AccessCounts(int64_t num_nodes, int64_t expected) {
  if (NodeTable::WantsMarks(num_nodes, expected)) {
    touched_.emplace(num_nodes);
  } else {
    counts_.emplace(num_nodes, expected);
  }
}

void AccessCounts::Add(std::span<const int64_t> nodes) {
  if (!counts_) {
    touched_->Seal();
    counts_.emplace(*touched_);
  }
  const auto sorted = sorter_.Sort(nodes);
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i + kAhead < sorted.size()) {
      counts_->Prefetch(static_cast<int64_t>(sorted[i + kAhead].node));
    }
    if (i > 0 && sorted[i].node == sorted[i - 1].node) continue;
    const auto node = static_cast<int64_t>(sorted[i].node);
    const uint32_t before = counts_->Get(node);
    const uint32_t count = before == NodeTable::kNone ? 1 : before + 1;
    counts_->Set(node, count);
    most_ = std::max(most_, count);
  }
}

memory::Buffer<int64_t> AccessCounts::Hottest(size_t slots) const {
  if (!counts_) return {};  // no batch was counted
  std::vector<size_t> having(most_ + size_t{1}, 0);
  counts_->ForEach([&](int64_t, uint32_t count) { ++having[count]; });
  // All above `least` fit; of those with `least` itself, the first `equals`.
  uint32_t least = most_;
  size_t above = 0;
  while (least > 0 && above + having[least] <= slots) above += having[least--];
  const size_t equals = least == 0 ? 0 : slots - above;
  // The front is for those above; the back is a heap of the lowest ids so far with `least`.
  memory::Buffer<int64_t> found;
  found.resize(above + equals);
  int64_t* const heap = found.data() + above;
  size_t next = 0, lowest = 0;
  counts_->ForEach([&](int64_t node, uint32_t count) {
    if (count > least) {
      found[next++] = node;
    } else if (count == least && lowest < equals) {
      heap[lowest++] = node;
      std::push_heap(heap, heap + lowest);
    } else if (count == least && equals > 0 && node < heap[0]) {
      std::pop_heap(heap, heap + equals);
      heap[equals - 1] = node;
      std::push_heap(heap, heap + equals);
    }
  });
  std::sort(found.data(), found.data() + found.size());
  return found;
}

TierSplitter::TierSplitter(int64_t num_nodes, std::span<const int64_t> cached)
    : slots_(num_nodes, cached) {}

void TierSplitter::Split(std::span<const int64_t> nodes) {
  for (auto* rows :
       {&cold_rows_, &cached_rows_, &cached_slots_, &packed_rows_, &copied_rows_, &copied_from_}) {
    rows->clear();
  }
  cold_.clear();
  packed_nodes_.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + 2 * kAhead < nodes.size()) slots_.PrefetchPlace(nodes[i + 2 * kAhead]);
    if (i + kAhead < nodes.size()) slots_.Prefetch(nodes[i + kAhead]);
    const uint32_t slot = slots_.Slot(nodes[i]);
    if (slot == NodeTable::kNone) {
      cold_.push_back(nodes[i]);
      cold_rows_.push_back(static_cast<uint32_t>(i));
    } else {
      cached_rows_.push_back(static_cast<uint32_t>(i));
      cached_slots_.push_back(slot);
    }
  }
  for (const Entry& entry : sorter_.Sort(cold_)) {
    const auto node = static_cast<int64_t>(entry.node);
    const uint32_t row = cold_rows_[entry.row];
    const size_t packed = packed_nodes_.size();
    if (packed > 0 && packed_nodes_[packed - 1] == node) {
      copied_rows_.push_back(row);
      copied_from_.push_back(packed_rows_[packed - 1]);
    } else {
      packed_nodes_.push_back(node);
      packed_rows_.push_back(row);
    }
  }
}

}  // namespace outcrop::cache
