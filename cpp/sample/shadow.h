// ShaDow: roots -> for each its k-hop sampled nodes with all edges among them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sample/frontier.h"
#include "sample/id_table.h"
#include "sample/subgraph.h"
#include "threads/pool.h"

namespace outcrop::sample {

// Subgraphs of different roots share no nodes: a graph node in two of them is two local nodes. All
// roots advance together, hop by hop, so that the topology sees whole frontiers.
// Not thread-safe: one per thread; they may share a thread-safe topology.
class ShadowSampler {
 public:
  // REQUIRES: the topology outlives this object.
  ShadowSampler(Topology& topology, std::vector<int64_t> fanouts, Replace replace,
                uint32_t threads);

  // The result is valid until the next call. REQUIRES: roots are nodes of the topology.
  const Subgraph& Sample(const BatchKey& key, std::span<const int64_t> roots);

  const Subgraph& subgraph() const { return subgraph_; }
  void Cancel() { pool_.Cancel(); }
  uint64_t capacity_bytes() const;

 private:
  uint32_t Member(int64_t node, uint32_t root, bool add);
  void Discover(const BatchKey& key, std::span<const int64_t> roots);
  void GroupByRoot(size_t num_roots);
  void InduceEdges();

  Topology& topology_;
  const std::vector<int64_t> fanouts_;
  threads::Pool pool_;
  Frontier frontier_;  // draws the k-hop nodes
  Frontier lists_;     // whole lists, for the induced edges
  IdTable table_;
  // In order of discovery, all roots mixed
  memory::Buffer<int64_t> found_;
  memory::Buffer<uint32_t> found_roots_;
  memory::Buffer<uint32_t> local_ids_;   // of each found node
  memory::Buffer<uint32_t> node_roots_;  // root of each local node
  memory::Buffer<List> degrees_;         // and lists, of each local node
  memory::Buffer<int64_t> drawn_;        // edge ids that only serve discovery
  Subgraph subgraph_;
};

}  // namespace outcrop::sample
