// Relabelling: drawn neighbours by their ids -> a subgraph by local ids, in order of discovery.
#pragma once

#include <cstdint>
#include <span>

#include "sample/id_table.h"
#include "sample/subgraph.h"

namespace outcrop::sample {

// Grows the subgraph of neighbour sampling hop by hop, wherever the neighbours were drawn from.
// Not thread-safe.
class Relabeller {
 public:
  explicit Relabeller(int64_t num_nodes) : tags_are_ids_(num_nodes <= int64_t{1} << 32) {}

  // A subgraph of these seeds alone. A seed that occurs twice is two nodes, as in PyG; edges come
  // from the first of them.
  void Begin(std::span<const int64_t> seeds);

  // What one hop drew for the nodes that the hop before discovered, or the seeds: of node i of them
  // neighbours [first[i], first[i + 1]). Their edge ids are the caller's to append.
  void Add(std::span<const uint64_t> first, std::span<const int64_t> neighbours);

  // Puts some of the nodes that the last Add found behind the others, as if the next hop had found
  // them: that hop does not expand them, the one after it does. All keep their order. REQUIRES: an
  // entry per node that was found, 1 where it is put off.
  void Defer(std::span<const uint8_t> deferred);

  // The nodes that the last Add found and that were not put off, or the seeds.
  std::span<const int64_t> frontier() const;

  // After the subgraph was replaced by another one that was begun here: goes on with that.
  void Restore();

  Subgraph& subgraph() { return subgraph_; }
  const Subgraph& subgraph() const { return subgraph_; }
  uint64_t capacity_bytes() const { return subgraph_.capacity_bytes() + table_.capacity_bytes(); }

 private:
  uint32_t LocalId(int64_t node, uint64_t hash);

  const bool tags_are_ids_;  // node ids fit into a tag: no second look is needed
  IdTable table_;
  Subgraph subgraph_;
};

}  // namespace outcrop::sample
