#include "cache/touched.h"

#include <algorithm>

namespace outcrop::cache {

TouchedNodes::TouchedNodes(int64_t num_nodes) {
  blocks_.resize(NodeBits::Blocks(num_nodes));
  std::fill_n(blocks_.data(), blocks_.size(), Block());
}

void TouchedNodes::Add(std::span<const int64_t> nodes) {
  constexpr size_t kAhead = 16;  // each is a cache miss of its own
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) Prefetch(nodes[i + kAhead]);
    Add(nodes[i]);
  }
}

void TouchedNodes::Seal() {
  uint32_t before = 0;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    Block& block = blocks_[b];
    block.before = before;
    uint64_t within = 0;
    for (size_t word = 0; word < block.within.size(); ++word) {
      block.within[word] = static_cast<uint16_t>(within);
      within += NodeBits::Ones(block.nodes.words[word]);
    }
    before += static_cast<uint32_t>(within);
  }
}

}  // namespace outcrop::cache
