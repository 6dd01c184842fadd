#include "sample/relabel.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace outcrop::sample {
namespace {

// Nodes that are of a hop already: those behind them were put off.
size_t Placed(std::span<const int64_t> nodes_per_hop) {
  return static_cast<size_t>(
      std::accumulate(nodes_per_hop.begin(), nodes_per_hop.end(), int64_t{0}));
}

}  // namespace

void Relabeller::Begin(std::span<const int64_t> seeds) {
  table_.Reset(subgraph_.nodes.size());  // as many as last time
  subgraph_.Clear();
  for (int64_t seed : seeds) {
    const uint64_t hash = IdTable::Hash(static_cast<uint64_t>(seed));
    const size_t known = subgraph_.nodes.size();
    if (LocalId(seed, hash) != known) subgraph_.nodes.push_back(seed);
  }
  subgraph_.nodes_per_hop.push_back(static_cast<int64_t>(seeds.size()));
}

// Neighbours -> local ids, appended to sources; new nodes are appended to nodes.
void Relabeller::Add(std::span<const uint64_t> first, std::span<const int64_t> neighbours) {
  for (size_t i = 0; i + 1 < first.size(); ++i) {
    subgraph_.counts.push_back(static_cast<uint32_t>(first[i + 1] - first[i]));
  }
  const size_t known = Placed(subgraph_.nodes_per_hop), before = subgraph_.sources.size();
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
  subgraph_.nodes_per_hop.push_back(static_cast<int64_t>(subgraph_.nodes.size() - known));
  subgraph_.edges_per_hop.push_back(static_cast<int64_t>(neighbours.size()));
}

void Relabeller::Defer(std::span<const uint8_t> deferred) {
  const size_t end = subgraph_.nodes.size(), begin = end - deferred.size();
  const auto put_off = static_cast<size_t>(std::ranges::count(deferred, uint8_t{1}));
  if (put_off == 0) return;
  const auto kept = deferred.size() - put_off;
  std::vector<uint32_t> places(deferred.size());
  std::vector<int64_t> nodes(deferred.size());
  size_t next_kept = 0, next_put_off = kept;
  for (size_t i = 0; i < deferred.size(); ++i) {
    const size_t place = deferred[i] != 0 ? next_put_off++ : next_kept++;
    places[i] = static_cast<uint32_t>(begin + place);
    nodes[place] = subgraph_.nodes[begin + i];
  }
  std::ranges::copy(nodes, subgraph_.nodes.data() + begin);
  const size_t edges = subgraph_.sources.size();
  for (size_t e = edges - static_cast<size_t>(subgraph_.edges_per_hop.back()); e < edges; ++e) {
    uint32_t& source = subgraph_.sources[e];
    if (source >= begin) source = places[source - begin];
  }
  subgraph_.nodes_per_hop.back() = static_cast<int64_t>(kept);
  Restore();
}

std::span<const int64_t> Relabeller::frontier() const {
  const auto count = static_cast<size_t>(subgraph_.nodes_per_hop.back());
  const size_t end = Placed(subgraph_.nodes_per_hop);
  return subgraph_.nodes.Slice(end - count, end);
}

void Relabeller::Restore() {
  const std::span<const int64_t> nodes = subgraph_.nodes;
  table_.Reset(2 * nodes.size());  // the next hop will add to them
  const auto same = [&](int64_t node) {
    return [&, node](uint32_t index) { return tags_are_ids_ || nodes[index] == node; };
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    table_.FindOrInsert(
        IdTable::Hash(static_cast<uint64_t>(nodes[i])), static_cast<uint32_t>(nodes[i]),
        static_cast<uint32_t>(i), same(nodes[i]),
        [&](uint32_t index) { return IdTable::Hash(static_cast<uint64_t>(nodes[index])); });
  }
}

uint32_t Relabeller::LocalId(int64_t node, uint64_t hash) {
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
