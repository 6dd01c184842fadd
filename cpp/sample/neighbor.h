// Neighbour sampling: seeds -> the subgraph of their sampled neighbourhoods, in PyG's order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sample/frontier.h"
#include "sample/id_table.h"
#include "sample/subgraph.h"
#include "threads/pool.h"

namespace outcrop::sample {

// Each hop expands the nodes that the hop before discovered. Nodes come in order of discovery, the
// seeds first. Not thread-safe: one per thread; they may share a thread-safe topology.
class NeighborSampler {
 public:
  // REQUIRES: the topology outlives this object.
  NeighborSampler(Topology& topology, std::vector<int64_t> fanouts, Replace replace,
                  uint32_t threads);

  // The result is valid until the next call. REQUIRES: seeds are nodes of the topology. A seed
  // that occurs twice is two nodes, as in PyG; edges come from the first of them.
  const Subgraph& Sample(const BatchKey& key, std::span<const int64_t> seeds);

  const Subgraph& subgraph() const { return subgraph_; }
  void Cancel() { pool_.Cancel(); }
  // Memory that is kept for the next call.
  uint64_t capacity_bytes() const {
    return subgraph_.capacity_bytes() + table_.capacity_bytes() + frontier_.capacity_bytes();
  }

 private:
  void Relabel();
  uint32_t LocalId(int64_t node, uint64_t hash);

  const std::vector<int64_t> fanouts_;
  const bool tags_are_ids_;  // node ids fit into a tag: no second look is needed
  threads::Pool pool_;
  Frontier frontier_;
  IdTable table_;
  Subgraph subgraph_;
};

}  // namespace outcrop::sample
