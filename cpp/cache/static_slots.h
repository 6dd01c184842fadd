// Static slots: a cache whose contents never change.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "cache/changes.h"
#include "cache/node_table.h"

namespace outcrop::cache {

// Who is there is known, so that of large graphs the table is of those nodes alone, where that is
// the smaller one. Thread-safe: constant after construction.
class StaticSlots {
 public:
  // Node nodes[i] is in slot i. REQUIRES: all differ, fewer than 2^31.
  StaticSlots(int64_t num_nodes, std::span<const int64_t> nodes)
      : cached_(Marked(num_nodes, nodes)),
        table_(cached_ ? NodeTable(*cached_)
                       : NodeTable(num_nodes, static_cast<int64_t>(nodes.size()))) {
    for (size_t i = 0; i < nodes.size(); ++i) table_.Set(nodes[i], static_cast<uint32_t>(i));
  }
  StaticSlots(const StaticSlots&) = delete;

  // What finds so many slots takes; not more than the nodes of the graph are in any.
  static uint64_t Bytes(int64_t num_nodes, int64_t slots) {
    return NodeTable::MarkedBytes(num_nodes, slots);
  }

  // NodeTable::kNone: it is in none.
  uint32_t Slot(int64_t node) const { return table_.Get(node); }
  void PrefetchPlace(int64_t node) const { table_.PrefetchPlace(node); }
  void Prefetch(int64_t node) const { table_.Prefetch(node); }

  // The slot of each node, or kMiss.
  void Find(std::span<const int64_t> nodes, std::span<int32_t> slots) const {
    constexpr size_t kAhead = 16;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (i + 2 * kAhead < nodes.size()) table_.PrefetchPlace(nodes[i + 2 * kAhead]);
      if (i + kAhead < nodes.size()) table_.Prefetch(nodes[i + kAhead]);
      const uint32_t slot = table_.Get(nodes[i]);
      slots[i] = slot == NodeTable::kNone ? kMiss : static_cast<int32_t>(slot);
    }
  }

 private:
  // The nodes, sealed; none where a table of any nodes is as small.
  static std::optional<TouchedNodes> Marked(int64_t num_nodes, std::span<const int64_t> nodes) {
    if (!NodeTable::WantsMarks(num_nodes, static_cast<int64_t>(nodes.size()))) return std::nullopt;
    TouchedNodes marked(num_nodes);
    marked.Add(nodes);
    marked.Seal();
    return marked;
  }

  const std::optional<TouchedNodes> cached_;
  NodeTable table_;
};

}  // namespace outcrop::cache
