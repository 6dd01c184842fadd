#include "sample/shadow.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace outcrop::sample {
namespace {

// Edges whose ends are fetched at a time, unless one node has more: bounds memory.
constexpr int64_t kEdgesAtATime = 1 << 20;

uint64_t HashOf(int64_t node, uint32_t root) {
  return IdTable::Hash(static_cast<uint64_t>(node) + uint64_t{root} * 0xD1B54A32D192ED03);
}

}  // namespace

ShadowSampler::ShadowSampler(Topology& topology, std::vector<int64_t> fanouts, Replace replace,
                             uint32_t threads)
    : topology_(topology),
      fanouts_(std::move(fanouts)),
      pool_(threads),
      frontier_(topology, replace, pool_),
      lists_(topology, Replace::kNo, pool_) {}

const Subgraph& ShadowSampler::Sample(const BatchKey& key, std::span<const int64_t> roots) {
  subgraph_.Clear();
  Discover(key, roots);
  GroupByRoot(roots.size());
  InduceEdges();
  return subgraph_;
}

// The index in found_ of a root's node; kNone if it is not there and not to be added.
uint32_t ShadowSampler::Member(int64_t node, uint32_t root, bool add) {
  const size_t known = found_.size();
  const auto same = [&](uint32_t i) { return found_[i] == node && found_roots_[i] == root; };
  const uint64_t hash = HashOf(node, root);
  const auto tag = static_cast<uint32_t>(node);
  if (!add) return table_.Find(hash, tag, same);
  if (known >= IdTable::kNone) {
    throw std::length_error("a batch of more than 2^32 nodes; use smaller batches or fanouts");
  }
  const uint32_t index = table_.FindOrInsert(
      hash, tag, static_cast<uint32_t>(known), same,
      [&](uint32_t i) { return i == known ? hash : HashOf(found_[i], found_roots_[i]); });
  if (index == known) {
    found_.push_back(node);
    found_roots_.push_back(root);
  }
  return index;
}

void ShadowSampler::Discover(const BatchKey& key, std::span<const int64_t> roots) {
  table_.Reset(found_.size());  // as many as last time
  found_.clear();
  found_roots_.clear();
  // Roots are numbered from 1 in keys: 0 stands for a batch without roots.
  for (size_t r = 0; r < roots.size(); ++r) Member(roots[r], static_cast<uint32_t>(r + 1), true);
  size_t begin = 0;
  for (size_t hop = 0; hop < fanouts_.size(); ++hop) {
    const size_t end = found_.size();
    drawn_.clear();
    frontier_.Expand(found_.Slice(begin, end), found_roots_.Slice(begin, end),
                     HopKey(key, static_cast<uint32_t>(hop)), fanouts_[hop], drawn_);
    const std::span<const uint64_t> first = frontier_.first();
    const std::span<const int64_t> neighbours = frontier_.neighbours();
    for (size_t i = begin; i < end; ++i) {
      const uint32_t root = found_roots_[i];
      for (uint64_t e = first[i - begin]; e < first[i - begin + 1]; ++e) {
        Member(neighbours[e], root, true);
      }
    }
    begin = end;
  }
}

// Local ids: root by root, within a root in order of discovery.
void ShadowSampler::GroupByRoot(size_t num_roots) {
  std::vector<int64_t>& starts = subgraph_.roots;
  starts.assign(num_roots + 1, 0);
  for (size_t i = 0; i < found_.size(); ++i) ++starts[found_roots_[i]];
  for (size_t r = 0; r < num_roots; ++r) starts[r + 1] += starts[r];
  std::vector<int64_t> next(starts.begin(), starts.end() - 1);
  local_ids_.resize(found_.size());
  node_roots_.resize(found_.size());
  subgraph_.nodes.resize(found_.size());
  for (size_t i = 0; i < found_.size(); ++i) {
    const auto local = static_cast<uint32_t>(next[found_roots_[i] - 1]++);
    local_ids_[i] = local;
    node_roots_[local] = found_roots_[i];
    subgraph_.nodes[local] = found_[i];
  }
}

void ShadowSampler::InduceEdges() {
  const size_t count = subgraph_.nodes.size();
  subgraph_.counts.resize(count);
  degrees_.resize(count);
  topology_.Lists(subgraph_.nodes, pool_, degrees_);
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    int64_t edges = 0;
    do {
      edges += degrees_[end++].degree;
    } while (end < count && edges + degrees_[end].degree <= kEdgesAtATime);
    drawn_.clear();
    lists_.Expand(subgraph_.nodes.Slice(begin, end), {}, 0, -1, drawn_);
    const std::span<const uint64_t> first = lists_.first();
    const std::span<const int64_t> neighbours = lists_.neighbours();
    for (size_t target = begin; target < end; ++target) {
      const size_t before = subgraph_.sources.size();
      for (uint64_t e = first[target - begin]; e < first[target - begin + 1]; ++e) {
        const uint32_t found = Member(neighbours[e], node_roots_[target], false);
        if (found == IdTable::kNone) continue;
        subgraph_.sources.push_back(local_ids_[found]);
        subgraph_.edge_ids.push_back(drawn_[e]);
      }
      subgraph_.counts[target] = static_cast<uint32_t>(subgraph_.sources.size() - before);
    }
  }
}

uint64_t ShadowSampler::capacity_bytes() const {
  return frontier_.capacity_bytes() + lists_.capacity_bytes() + table_.capacity_bytes() +
         found_.capacity_bytes() + found_roots_.capacity_bytes() + local_ids_.capacity_bytes() +
         node_roots_.capacity_bytes() + degrees_.capacity_bytes() + drawn_.capacity_bytes() +
         subgraph_.capacity_bytes();
}

}  // namespace outcrop::sample
