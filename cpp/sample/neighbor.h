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

  // The same in two steps. Begin samples the first hop; subgraph() has what it found. Finish
  // samples the others; `deferred` (empty: none) has an entry per node that was found, 1 where the
  // second hop is not to expand it but the third, as if the second had found it.
  void Begin(const BatchKey& key, std::span<const int64_t> seeds);
  const Subgraph& Finish(std::span<const uint8_t> deferred);

  const Subgraph& subgraph() const { return relabeller_.subgraph(); }
  void Cancel() { pool_.Cancel(); }
  // Memory that is kept for the next call.
  uint64_t capacity_bytes() const {
    return relabeller_.capacity_bytes() + frontier_.capacity_bytes();
  }

 private:
  void Expand(size_t hop);

  const std::vector<int64_t> fanouts_;
  threads::Pool pool_;
  Frontier frontier_;
  Relabeller relabeller_;
  BatchKey key_;
};

}  // namespace outcrop::sample
