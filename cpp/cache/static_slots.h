// Static slots: a cache whose contents never change.
#pragma once

#include <cstdint>
#include <span>

#include "cache/changes.h"
#include "cache/node_table.h"

namespace outcrop::cache {

// Thread-safe: constant after construction.
class StaticSlots {
 public:
  // Node nodes[i] is in slot i. REQUIRES: all differ, fewer than 2^31.
  StaticSlots(int64_t num_nodes, std::span<const int64_t> nodes)
      : table_(num_nodes, static_cast<int64_t>(nodes.size())) {
    for (size_t i = 0; i < nodes.size(); ++i) table_.Set(nodes[i], static_cast<uint32_t>(i));
  }

  // The slot of each node, or kMiss.
  void Find(std::span<const int64_t> nodes, std::span<int32_t> slots) const {
    constexpr size_t kAhead = 16;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (i + kAhead < nodes.size()) table_.Prefetch(nodes[i + kAhead]);
      const uint32_t slot = table_.Get(nodes[i]);
      slots[i] = slot == NodeTable::kNone ? kMiss : static_cast<int32_t>(slot);
    }
  }

 private:
  NodeTable table_;
};

}  // namespace outcrop::cache
