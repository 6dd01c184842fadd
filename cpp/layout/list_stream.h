// A topology in pieces: offsets and entries, each cut anywhere -> the lists of its nodes, in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "layout/blocks.h"

namespace outcrop::layout {

// Where in a topology a pass is. Not thread-safe.
class ListStream {
 public:
  explicit ListStream(int64_t num_nodes) : num_nodes_(num_nodes) {}

  // What one call has used.
  struct Taken {
    size_t nodes = 0, entries = 0;
  };
  // `offsets`: those of the next nodes, and where the last of them ends; `entries`: the next ones.
  // Goes on until one of them is at its end (offsets: one is left). For each node in turn:
  // begin(node), some(entries) as often as its list is cut, end(node).
  // Throws BadBlock where the graph is wrong.
  template <typename Index, typename Begin, typename Some, typename End>
  Taken Walk(std::span<const int64_t> offsets, std::span<const Index> entries, Begin&& begin,
             Some&& some, End&& end) {
    Taken taken;
    while (taken.nodes + 1 < offsets.size()) {
      const int64_t first = offsets[taken.nodes], last = offsets[taken.nodes + 1];
      if (node_ >= num_nodes_ || first != edges_ - before_ || last < first) {
        throw BadBlock("indptr.npy: node " + std::to_string(node_) + ": its list begins at edge " +
                       std::to_string(first) + " and ends at " + std::to_string(last));
      }
      if (!begun_) begin(node_);
      begun_ = true;
      const auto left = static_cast<size_t>(last - edges_);
      const auto piece =
          entries.subspan(taken.entries, std::min(left, entries.size() - taken.entries));
      CheckNodes(piece);
      if (!piece.empty()) some(piece);
      taken.entries += piece.size();
      edges_ += static_cast<int64_t>(piece.size());
      before_ += static_cast<int64_t>(piece.size());
      if (piece.size() < left) return taken;
      end(node_);
      begun_ = false;
      before_ = 0;
      ++node_;
      ++taken.nodes;
    }
    return taken;
  }

  int64_t num_edges() const { return edges_; }  // so far

 private:
  template <typename Index>
  void CheckNodes(std::span<const Index> entries) const {
    bool good = true;
    for (const Index entry : entries) {
      good &= static_cast<uint64_t>(entry) < static_cast<uint64_t>(num_nodes_);
    }
    if (good) return;
    const auto bad = std::find_if(entries.begin(), entries.end(), [this](Index entry) {
      return static_cast<uint64_t>(entry) >= static_cast<uint64_t>(num_nodes_);
    });
    throw BadBlock("indices.npy: an edge of node " + std::to_string(node_) + " comes from " +
                   std::to_string(*bad) + ", which is no node");
  }

  int64_t num_nodes_;
  int64_t node_ = 0;    // the next one, or the one whose list is on the way
  int64_t before_ = 0;  // entries of its list that were met
  int64_t edges_ = 0;
  bool begun_ = false;
};

}  // namespace outcrop::layout
