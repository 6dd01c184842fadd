// Use counts: node id -> how often it was used of late.
#pragma once

#include <cstdint>

#include "cache/node_bytes.h"

namespace outcrop::cache {

// Counts uses; now and then all counts are halved, so that what was used long ago fades.
// Not thread-safe.
class UseCounts {
 public:
  // Counts are 0 to kMost.
  static constexpr uint8_t kMost = 63;

  // For `kept` nodes that are kept, out of num_nodes.
  UseCounts(int64_t num_nodes, int64_t kept)
      : until_halved_(kHalveAfter * kept), kept_(kept), counts_(num_nodes, kept) {}

  void Prefetch(int64_t node) const { counts_.Prefetch(node); }

  // Counts a use -> the node's count.
  uint8_t Add(int64_t node) {
    --until_halved_;
    uint8_t& count = counts_[node];
    if (count < kMost) ++count;
    return count;
  }

  uint8_t operator[](int64_t node) const { return counts_[node]; }

  // Whether enough was counted since the last Halve.
  bool due() const { return until_halved_ <= 0; }

  void Halve() {
    for (uint8_t& count : counts_.all()) count /= 2;
    until_halved_ = kHalveAfter * kept_;
  }

 private:
  static constexpr int64_t kHalveAfter = 32;  // uses per node that is kept: to see what returns

  int64_t until_halved_;
  const int64_t kept_;
  NodeBytes counts_;
};

}  // namespace outcrop::cache
