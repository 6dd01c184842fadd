#include "sample/frontier.h"

#include <stdexcept>
#include <string>

namespace outcrop::sample {
namespace {

constexpr uint64_t kMostEdges = uint64_t{1} << 32;

}  // namespace

void Frontier::Expand(std::span<const int64_t> nodes, std::span<const uint32_t> roots,
                      uint64_t hop_key, int64_t fanout, memory::Buffer<int64_t>& edge_ids) {
  lists_.resize(nodes.size());
  topology_.Lists(nodes, pool_, lists_);
  first_.resize(nodes.size() + 1);
  const size_t before = edge_ids.size();
  uint64_t total = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    CheckList(nodes[i], lists_[i]);
    first_[i] = total;
    const uint64_t count = DrawCount(static_cast<uint64_t>(lists_[i].degree), fanout, replace_);
    if (count >= kMostEdges || before + (total += count) >= kMostEdges) {
      throw std::length_error("a batch of more than 2^32 edges; use smaller batches or fanouts");
    }
  }
  first_[nodes.size()] = total;
  edge_ids.resize(before + total);
  neighbours_.resize(total);
  int64_t* drawn = edge_ids.data() + before;
  const Replace replace = fanout < 0 ? Replace::kNo : replace_;
  pool_.For(nodes.size(), 256, [&](size_t begin, size_t end) {
    Drawer drawer;
    for (size_t i = begin; i < end; ++i) {
      const std::span<int64_t> out(drawn + first_[i], first_[i + 1] - first_[i]);
      drawer.Draw(hop_key, static_cast<uint64_t>(nodes[i]), roots.empty() ? 0 : roots[i],
                  static_cast<uint64_t>(lists_[i].degree), replace, out);
      for (int64_t& position : out) position += lists_[i].begin;
    }
  });
  topology_.Fetch({nodes, lists_, first_, {drawn, total}}, pool_, neighbours_);
  CheckNeighbours({drawn, total});
}

void Frontier::CheckList(int64_t node, const List& list) const {
  const int64_t edges = topology_.num_edges();
  if (list.begin < 0 || list.degree < 0 || list.begin > edges - list.degree) {
    throw BadTopology("indptr.npy: the neighbour list of node " + std::to_string(node) +
                      " is not within the graph's edges");
  }
}

void Frontier::CheckNeighbours(std::span<const int64_t> edge_ids) const {
  const auto nodes = static_cast<uint64_t>(topology_.num_nodes());
  for (size_t i = 0; i < edge_ids.size(); ++i) {
    if (static_cast<uint64_t>(neighbours_[i]) >= nodes) {
      throw BadTopology("indices.npy: edge " + std::to_string(edge_ids[i]) + " comes from " +
                        std::to_string(neighbours_[i]) + ", which is no node");
    }
  }
}

}  // namespace outcrop::sample
