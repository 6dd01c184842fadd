// Subgraph: what a sampler returns, compactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/buffer.h"

namespace outcrop::sample {

// Edges are grouped by target, targets in the order of their local ids: counts[t] edges end at
// local node t, for t < counts.size(). So sources and counts are all that an edge list needs.
struct Subgraph {
  memory::Buffer<int64_t> nodes;     // global ids, by local id
  memory::Buffer<uint32_t> sources;  // local id of each edge's source
  memory::Buffer<uint32_t> counts;   // edges per target
  memory::Buffer<int64_t> edge_ids;  // position of each edge in the graph's CSC
  // Neighbour sampling: entry 0 are the seeds, entry h + 1 what hop h discovered.
  std::vector<int64_t> nodes_per_hop;
  std::vector<int64_t> edges_per_hop;
  // ShaDow: nodes [roots[r], roots[r + 1]) are root r's own subgraph, the root first.
  std::vector<int64_t> roots;

  void Clear() {
    nodes.clear();
    sources.clear();
    counts.clear();
    edge_ids.clear();
    nodes_per_hop.clear();
    edges_per_hop.clear();
    roots.clear();
  }

  uint64_t capacity_bytes() const {
    return nodes.capacity_bytes() + sources.capacity_bytes() + counts.capacity_bytes() +
           edge_ids.capacity_bytes();
  }
};

// sources, counts -> an edge list of 64-bit local ids: edges[0 .. E) sources, edges[E .. 2E)
// targets. REQUIRES: edges.size() == 2 * sources.size(), and counts add up to sources.size().
void ExpandEdges(std::span<const uint32_t> sources, std::span<const uint32_t> counts,
                 std::span<int64_t> edges);

}  // namespace outcrop::sample
