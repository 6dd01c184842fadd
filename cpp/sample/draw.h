// Draw: (key, node, degree) -> positions in the node's neighbour list. docs/format.md specifies it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "random/philox.h"

namespace outcrop::sample {

// Which batch: what every choice in it is a function of.
struct BatchKey {
  uint64_t seed = 0;
  uint32_t stream = 0;  // training, validation, direct calls ... see Stream in seeds.py
  uint32_t epoch = 0;
  uint32_t batch = 0;
};

// The key of one hop of a batch.
uint64_t HopKey(const BatchKey& key, uint32_t hop);

enum class Replace { kNo, kYes };

// How many of `degree` neighbours a fanout takes; -1 takes all.
inline uint64_t DrawCount(uint64_t degree, int64_t fanout, Replace replace) {
  if (fanout < 0 || degree == 0) return degree;
  const auto wanted = static_cast<uint64_t>(fanout);
  return replace == Replace::kYes ? wanted : std::min(wanted, degree);
}

// Draws positions. Not thread-safe: one per thread.
class Drawer {
 public:
  // Fills `out` with ascending positions below `degree`: all of them if out.size() == degree and
  // nothing is replaced (or for fanout -1), else a uniform choice.
  // REQUIRES: degree > 0 unless out is empty; out.size() <= degree unless replaced.
  void Draw(uint64_t hop_key, uint64_t node, uint32_t root, uint64_t degree, Replace replace,
            std::span<int64_t> out);

 private:
  void Floyd(uint64_t degree, std::span<int64_t> out);
  void FloydHashed(uint64_t degree, std::span<int64_t> out);
  void WithReplacement(uint64_t degree, std::span<int64_t> out);

  // Draw number `index` of the current node: 64 bits.
  uint64_t Bits(uint32_t index) {
    if (index % 2 == 0) {
      block_ = random::Philox(hop_key_, {static_cast<uint32_t>(node_),
                                         static_cast<uint32_t>(node_ >> 32), root_, index / 2});
      return random::Low64(block_);
    }
    return random::High64(block_);
  }

  uint64_t hop_key_ = 0, node_ = 0;
  uint32_t root_ = 0;
  random::Block block_{};
  std::vector<int64_t> chosen_;  // hash set of positions, -1 where empty
};

}  // namespace outcrop::sample
