// Touched nodes: some nodes of a graph -> 0, 1, 2 ... in the order of their ids.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "cache/node_bits.h"
#include "memory/buffer.h"

namespace outcrop::cache {

// A bit for each node of the graph, and numbers to count them by: a cache line per 384 nodes, so
// that a lookup costs one miss. What is kept of touched nodes then needs no more than that.
// Filled first, then sealed. Not thread-safe.
class TouchedNodes {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // None is touched yet.
  explicit TouchedNodes(int64_t num_nodes);

  static uint64_t Bytes(int64_t num_nodes) { return NodeBits::Blocks(num_nodes) * sizeof(Block); }

  // Whether it was not touched before. REQUIRES: 0 <= node < num_nodes; not sealed; count() <
  // kNone.
  bool Add(int64_t node) {
    NodeBits& nodes = blocks_[NodeBits::BlockOf(node)].nodes;
    const uint64_t bit = NodeBits::BitOf(node);
    if (nodes.Has(bit)) return false;
    nodes.Add(bit);
    ++count_;
    return true;
  }
  void Add(std::span<const int64_t> nodes);

  // How many are touched.
  uint32_t count() const { return count_; }

  // No more come.
  void Seal();

  // visit(node) for each, in the order of their numbers.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t b = 0; b < blocks_.size(); ++b) {
      blocks_[b].nodes.ForEach(
          [&](uint64_t bit) { visit(static_cast<int64_t>(b * NodeBits::kNodes + bit)); });
    }
  }

  void Prefetch(int64_t node) const { __builtin_prefetch(&blocks_[NodeBits::BlockOf(node)]); }
  // The number of a node, below count(); kNone where it is not touched. REQUIRES: sealed.
  uint32_t Place(int64_t node) const {
    const Block& block = blocks_[NodeBits::BlockOf(node)];
    const uint64_t bit = NodeBits::BitOf(node);
    if (!block.nodes.Has(bit)) return kNone;
    return block.before + block.within[bit / 64] +
           static_cast<uint32_t>(block.nodes.RankInWord(bit));
  }

 private:
  struct Block {
    uint32_t before;                                     // touched nodes of all blocks before
    std::array<uint16_t, NodeBits::kNodes / 64> within;  // and of this one, before each word
    NodeBits nodes;
  };
  static_assert(sizeof(Block) == 64);

  memory::Buffer<Block> blocks_;
  uint32_t count_ = 0;
};

}  // namespace outcrop::cache
