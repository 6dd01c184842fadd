// Tiers: batches of nodes -> who is wanted most, and for each row of a batch where it is found.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cache/node_table.h"
#include "cache/static_slots.h"
#include "memory/buffer.h"

namespace outcrop::cache {

// Entries of a batch, sorted by node: which node, and which row of the batch.
struct Entry {
  uint64_t node;
  uint32_t row;
};

// Sorts by node, stable; memory for it is kept. Not thread-safe.
class EntrySorter {
 public:
  // REQUIRES: no negative node; at most 2^31 of them.
  std::span<const Entry> Sort(std::span<const int64_t> nodes);

 private:
  memory::Buffer<Entry> from_, to_;
};

// How many batches want each node. Not thread-safe.
class AccessCounts {
 public:
  // `expected`: distinct nodes, at most; a table of all nodes where that is smaller.
  AccessCounts(int64_t num_nodes, int64_t expected);
  AccessCounts(const AccessCounts&) = delete;

  static uint64_t Bytes(int64_t num_nodes, int64_t expected) {
    return NodeTable::MarkedBytes(num_nodes, expected);
  }

  // Whether each batch has to be marked before the first one is counted.
  bool wants_marks() const { return touched_.has_value() && !counts_.has_value(); }
  // REQUIRES: wants_marks(); 0 <= node < num_nodes.
  void Mark(std::span<const int64_t> nodes) { touched_->Add(nodes); }

  // Counts a batch: each of its nodes once, however often it has it.
  // REQUIRES: 0 <= node < num_nodes; marked, where that was wanted.
  void Add(std::span<const int64_t> nodes);

  // The `slots` nodes that most batches want, ascending; of equals the lower ones, and none that
  // no batch wants. At most `slots` of them.
  memory::Buffer<int64_t> Hottest(size_t slots) const;

 private:
  std::optional<TouchedNodes> touched_;
  std::optional<NodeTable> counts_;
  EntrySorter sorter_;
  uint32_t most_ = 0;  // of any node
};

// Splits batches into rows that are cached and rows that are packed. Not thread-safe.
class TierSplitter {
 public:
  // `cached`: nodes, each of whose places here is its slot in the cache.
  TierSplitter(int64_t num_nodes, std::span<const int64_t> cached);

  // Results are valid until the next call. Rows are those of the batch.
  // REQUIRES: 0 <= node < num_nodes; at most 2^31 nodes.
  void Split(std::span<const int64_t> nodes);

  std::span<const uint32_t> cached_rows() const { return cached_rows_; }    // ascending
  std::span<const uint32_t> cached_slots() const { return cached_slots_; }  // of each of them
  std::span<const int64_t> packed_nodes() const { return packed_nodes_; }   // ascending, distinct
  std::span<const uint32_t> packed_rows() const { return packed_rows_; }    // of each of them
  std::span<const uint32_t> copied_rows() const { return copied_rows_; }    // packed once more
  std::span<const uint32_t> copied_from() const { return copied_from_; }    // the row to copy

 private:
  const StaticSlots slots_;
  EntrySorter sorter_;
  memory::Buffer<int64_t> cold_;
  memory::Buffer<uint32_t> cold_rows_;
  memory::Buffer<uint32_t> cached_rows_, cached_slots_, packed_rows_, copied_rows_, copied_from_;
  memory::Buffer<int64_t> packed_nodes_;
};

}  // namespace outcrop::cache
