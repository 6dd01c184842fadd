#include "sample/topology.h"

#include <algorithm>

namespace outcrop::sample {
namespace {

// How far ahead memory is asked for: enough to cover a miss, few enough for the CPU to track.
constexpr size_t kAhead = 24;
constexpr size_t kGrain = 1024;

}  // namespace

template <typename Offsets>
void ListsOf(const Offsets& offsets, std::span<const int64_t> nodes, threads::Pool& pool,
             std::span<List> lists) {
  pool.For(nodes.size(), kGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + 2 * kAhead < end) offsets.PrefetchFirst(nodes[i + 2 * kAhead]);
      if (i + kAhead < end) offsets.PrefetchThen(nodes[i + kAhead]);
      const cache::Bounds bounds = offsets.At(nodes[i]);
      lists[i] = {bounds.begin, bounds.end - bounds.begin};
    }
  });
}

template void ListsOf(const cache::PlainOffsets&, std::span<const int64_t>, threads::Pool&,
                      std::span<List>);
template void ListsOf(const cache::CompressedOffsets&, std::span<const int64_t>, threads::Pool&,
                      std::span<List>);

template <typename Index>
void ArrayTopology<Index>::Fetch(const Drawn& drawn, threads::Pool& pool,
                                 std::span<int64_t> neighbours) {
  const Index* indices = indices_.data();
  const std::span<const int64_t> edges = drawn.edge_ids;
  pool.For(edges.size(), kGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(indices + edges[i + kAhead]);
      neighbours[i] = static_cast<int64_t>(indices[edges[i]]);
    }
  });
}

template class ArrayTopology<int32_t>;
template class ArrayTopology<int64_t>;

}  // namespace outcrop::sample
