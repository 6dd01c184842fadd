// Segment: consecutive batches -> which rows are stored once for all of them, and in which order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/node_table.h"
#include "cache/tiers.h"
#include "memory/buffer.h"

namespace outcrop::layout {

// By what rows are ordered; of equals, the lower ids come first.
enum class Order {
  kId,
  kSet,      // the exact set of batches that want a row; at most 64 batches
  kMinHash,  // the least hash of its batches, for several hash functions, the first one first
  kPrinted,  // the least of all those hashes together: the paper's Algorithm 1, for comparison
};

// For all nodes of some batches: how many batches want each. Then, for those that more than a few
// want, a position each, and every batch split into rows of its own and shared ones. Used again for
// the next segment after Clear. Not thread-safe.
class Segment {
 public:
  static constexpr uint32_t kMostInSet = 64;
  static constexpr uint32_t kMostHashes = 4;
  static constexpr int64_t kMostNodes = int64_t{1} << 40;
  static constexpr uint32_t kMostBatches = (uint32_t{1} << 24) - 1;

  // `expected`: distinct nodes of a segment, at most.
  // REQUIRES: num_nodes <= kMostNodes; 1 <= hashes <= kMostHashes.
  Segment(int64_t num_nodes, int64_t expected, Order order, uint32_t hashes);

  // What a segment of so many distinct nodes takes.
  static uint64_t Bytes(int64_t num_nodes, int64_t distinct);

  // The nodes of the segment's batch number `batch`.
  // REQUIRES: each node once; batch < kMostBatches, and < kMostInSet for kSet; Share not called.
  void Add(uint32_t batch, std::span<const int64_t> nodes);

  size_t rows() const { return rows_.size(); }

  // Adds to having[c] how many nodes are wanted by c batches; those of more to the last entry.
  // REQUIRES: nodes were added; Share not called.
  void Count(std::span<uint64_t> having) const;
  void CountOf(std::span<const int64_t> nodes, std::span<uint64_t> having) const;

  // Nodes that more than `above` batches want get positions 0, 1 ... -> how many they are.
  size_t Share(uint32_t above);

  // Splits a batch; results are valid until the next call. REQUIRES: Share was called.
  void Split(std::span<const int64_t> nodes);
  std::span<const uint32_t> own() const { return own_; }              // places in `nodes`
  std::span<const uint32_t> shared() const { return shared_; }        // places in `nodes`
  std::span<const uint32_t> positions() const { return positions_; }  // of those, ascending

  // Nodes at positions [begin, end) in ascending order, and how far behind `begin` each is.
  void Bucket(size_t begin, size_t end, std::span<int64_t> nodes, std::span<uint32_t> places);

  void Clear();

 private:
  struct Row {
    uint64_t key;
    uint64_t node_and_count;  // 40 and 24 bits

    int64_t node() const { return static_cast<int64_t>(node_and_count >> 24); }
    uint32_t count() const { return node_and_count & kMostBatches; }
  };

  // The key of a row that only this batch wants.
  uint64_t KeyOf(uint32_t batch) const;
  uint64_t Merged(uint64_t a, uint64_t b) const;

  // Constant after construction
  const Order order_;
  const uint32_t hashes_;

  cache::NodeTable places_;  // of a node in rows_; after Share its position
  memory::Buffer<Row> rows_;
  cache::EntrySorter sorter_;
  memory::Buffer<int64_t> nodes_;
  memory::Buffer<uint64_t> found_;  // (position, place) while a batch is split
  memory::Buffer<uint32_t> own_, shared_, positions_;
};

// How often a row that one batch wants is wanted next by which other: from that follows how many
// rows the segments of any length have. Not thread-safe.
class ReusePairs {
 public:
  // `units`: of consecutive batches. Takes 8 * units^2 bytes beside a table of nodes.
  ReusePairs(int64_t num_nodes, int64_t expected, uint32_t units);

  // REQUIRES: units in ascending order, the same one again for each of its batches.
  void Add(uint32_t unit, std::span<const int64_t> nodes);

  // [units, units]: rows of the first unit that are wanted next in the second.
  std::span<const uint64_t> pairs() const { return pairs_; }

 private:
  const uint32_t units_;
  cache::NodeTable last_;
  memory::Buffer<uint64_t> pairs_;
};

}  // namespace outcrop::layout
