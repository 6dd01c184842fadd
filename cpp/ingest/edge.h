// Edge records: what the external sort moves. Narrow ones hold ids below 2^32; numbered ones carry
// the edge's place in the source.
#pragma once

#include <cstdint>

namespace outcrop::ingest {

template <typename Id>
struct Edge {
  using IdType = Id;
  static constexpr bool kNumbered = false;
  Id target;
  Id source;
};

template <typename Id>
struct NumberedEdge {
  using IdType = Id;
  static constexpr bool kNumbered = true;
  Id target;
  Id source;
  int64_t number;
};

// Sorted by target, and edges of one target in source order; or by target and source, where
// multi-edges are to be merged and only the first of each is kept.
enum class Order { kTarget, kTargetSource };

template <typename Record>
bool Before(const Record& a, const Record& b, Order order) {
  if (a.target != b.target || order == Order::kTarget) return a.target < b.target;
  return a.source < b.source;
}

template <typename Record>
bool SameEdge(const Record& a, const Record& b) {
  return a.target == b.target && a.source == b.source;
}

}  // namespace outcrop::ingest
