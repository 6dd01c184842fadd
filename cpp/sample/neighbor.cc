#include "sample/neighbor.h"

#include <algorithm>
#include <utility>

namespace outcrop::sample {

void ExpandEdges(std::span<const uint32_t> sources, std::span<const uint32_t> counts,
                 std::span<int64_t> edges) {
  std::copy(sources.begin(), sources.end(), edges.begin());
  auto target = edges.begin() + static_cast<ptrdiff_t>(sources.size());
  for (size_t t = 0; t < counts.size(); ++t) {
    target = std::fill_n(target, counts[t], static_cast<int64_t>(t));
  }
}

NeighborSampler::NeighborSampler(Topology& topology, std::vector<int64_t> fanouts, Replace replace,
                                 uint32_t threads)
    : fanouts_(std::move(fanouts)),
      pool_(threads),
      frontier_(topology, replace, pool_),
      relabeller_(topology.num_nodes()) {}

const Subgraph& NeighborSampler::Sample(const BatchKey& key, std::span<const int64_t> seeds) {
  Begin(key, seeds);
  return Finish({});
}

void NeighborSampler::Begin(const BatchKey& key, std::span<const int64_t> seeds) {
  key_ = key;
  relabeller_.Begin(seeds);
  if (!fanouts_.empty()) Expand(0);
}

const Subgraph& NeighborSampler::Finish(std::span<const uint8_t> deferred) {
  relabeller_.Defer(deferred);
  for (size_t hop = 1; hop < fanouts_.size(); ++hop) Expand(hop);
  return relabeller_.subgraph();
}

void NeighborSampler::Expand(size_t hop) {
  frontier_.Expand(relabeller_.frontier(), {}, HopKey(key_, static_cast<uint32_t>(hop)),
                   fanouts_[hop], relabeller_.subgraph().edge_ids);
  relabeller_.Add(frontier_.first(), frontier_.neighbours());
}

}  // namespace outcrop::sample
