#include "sample/neighbor.h"

#include <algorithm>
#include <array>
#include <stdexcept>
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
      tags_are_ids_(topology.num_nodes() <= int64_t{1} << 32),
      pool_(threads),
      frontier_(topology, replace, pool_) {}

const Subgraph& NeighborSampler::Sample(const BatchKey& key, std::span<const int64_t> seeds) {
  table_.Reset(subgraph_.nodes.size());  // as many as last time
  subgraph_.Clear();
  for (int64_t seed : seeds) {
    const uint64_t hash = IdTable::Hash(static_cast<uint64_t>(seed));
    const size_t known = subgraph_.nodes.size();
    if (LocalId(seed, hash) != known) subgraph_.nodes.push_back(seed);
  }
  subgraph_.nodes_per_hop.push_back(static_cast<int64_t>(seeds.size()));
  size_t begin = 0;
  for (size_t hop = 0; hop < fanouts_.size(); ++hop) {
    const size_t end = subgraph_.nodes.size();
    frontier_.Expand(subgraph_.nodes.Slice(begin, end), {}, HopKey(key, static_cast<uint32_t>(hop)),
                     fanouts_[hop], subgraph_.edge_ids);
    const std::span<const uint64_t> first = frontier_.first();
    for (size_t i = begin; i < end; ++i) {
      subgraph_.counts.push_back(static_cast<uint32_t>(first[i - begin + 1] - first[i - begin]));
    }
    Relabel();
    subgraph_.nodes_per_hop.push_back(static_cast<int64_t>(subgraph_.nodes.size() - end));
    subgraph_.edges_per_hop.push_back(static_cast<int64_t>(frontier_.neighbours().size()));
    begin = end;
  }
  return subgraph_;
}

// Neighbours of the last hop -> local ids, appended to sources; new nodes are appended to nodes.
void NeighborSampler::Relabel() {
  const std::span<const int64_t> neighbours = frontier_.neighbours();
  const size_t before = subgraph_.sources.size();
  subgraph_.sources.resize(before + neighbours.size());
  uint32_t* sources = subgraph_.sources.data() + before;
  constexpr size_t kBlock = 32;  // lookups whose memory is asked for together
  std::array<uint64_t, kBlock> hashes;
  for (size_t begin = 0; begin < neighbours.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, neighbours.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = IdTable::Hash(static_cast<uint64_t>(neighbours[begin + i]));
      table_.Prefetch(hashes[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      sources[begin + i] = LocalId(neighbours[begin + i], hashes[i]);
    }
  }
}

uint32_t NeighborSampler::LocalId(int64_t node, uint64_t hash) {
  const size_t known = subgraph_.nodes.size();
  if (known >= IdTable::kNone) {
    throw std::length_error("a batch of more than 2^32 nodes; use smaller batches or fanouts");
  }
  const int64_t* nodes = subgraph_.nodes.data();
  const uint32_t local = table_.FindOrInsert(
      hash, static_cast<uint32_t>(node), static_cast<uint32_t>(known),
      [&](uint32_t index) { return tags_are_ids_ || nodes[index] == node; },
      [&](uint32_t index) {
        return IdTable::Hash(static_cast<uint64_t>(index == known ? node : nodes[index]));
      });
  if (local == known) subgraph_.nodes.push_back(node);
  return local;
}

}  // namespace outcrop::sample
