// Use counts: node id -> how often it was used of late, in a byte for each of a few nodes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "budget/buffer.h"

namespace outcrop::cache {

// Counts uses; now and then all counts are halved, so that what was used long ago fades. Of a graph
// much larger than what is kept of it, several nodes may share a count. Not thread-safe.
class UseCounts {
 public:
  // Counts are 0 to kMost.
  static constexpr uint8_t kMost = 63;

  // For `kept` nodes that are kept, out of num_nodes.
  UseCounts(int64_t num_nodes, int64_t kept) : until_halved_(kHalveAfter * kept), kept_(kept) {
    const size_t entries = Entries(num_nodes, kept);
    counts_.resize(entries);
    std::memset(counts_.data(), 0, entries);
    shift_ = entries == static_cast<size_t>(num_nodes) ? 0 : 64 - std::countr_zero(entries);
  }

  static uint64_t Bytes(int64_t num_nodes, int64_t kept) { return Entries(num_nodes, kept); }

  void Prefetch(int64_t node) const { __builtin_prefetch(&counts_[Entry(node)]); }

  // Counts a use -> the node's count.
  uint8_t Add(int64_t node) {
    --until_halved_;
    uint8_t& count = counts_[Entry(node)];
    if (count < kMost) ++count;
    return count;
  }

  // Whether enough was counted since the last Halve.
  bool due() const { return until_halved_ <= 0; }

  void Halve() {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] /= 2;
    until_halved_ = kHalveAfter * kept_;
  }

 private:
  // Both per node that is kept: enough to tell nodes apart, and to see what returns.
  static constexpr int64_t kEntries = 16, kHalveAfter = 32;

  static size_t Entries(int64_t num_nodes, int64_t kept) {
    const size_t wanted = std::bit_ceil(static_cast<size_t>(kept * kEntries));
    return std::min(wanted, static_cast<size_t>(num_nodes));
  }

  size_t Entry(int64_t node) const {
    if (shift_ == 0) return static_cast<size_t>(node);
    return static_cast<size_t>((static_cast<uint64_t>(node) * 0x9E3779B97F4A7C15) >> shift_);
  }

  int64_t until_halved_;
  const int64_t kept_;
  budget::Buffer<uint8_t> counts_;
  int shift_ = 0;  // 0: a count for each node
};

}  // namespace outcrop::cache
