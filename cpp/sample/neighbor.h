// Neighbour sampling: seeds -> the subgraph of their sampled neighbourhoods, in PyG's order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sample/frontier.h"
#include "sample/relabel.h"
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

  const Subgraph& subgraph() const { return relabeller_.subgraph(); }
  void Cancel() { pool_.Cancel(); }
  // Memory that is kept for the next call.
  uint64_t capacity_bytes() const {
    return relabeller_.capacity_bytes() + frontier_.capacity_bytes();
  }

 private:
  const std::vector<int64_t> fanouts_;
  threads::Pool pool_;
  Frontier frontier_;
  Relabeller relabeller_;
};

}  // namespace outcrop::sample
