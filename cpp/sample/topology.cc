#include "sample/topology.h"

#include <algorithm>

namespace outcrop::sample {
namespace {

// How far ahead memory is asked for: enough to cover a miss, few enough for the CPU to track.
constexpr size_t kAhead = 24;
constexpr size_t kGrain = 1024;

}  // namespace

void ListsOf(std::span<const int64_t> offsets, std::span<const int64_t> nodes, threads::Pool& pool,
             std::span<List> lists) {
  const int64_t* indptr = offsets.data();
  pool.For(nodes.size(), kGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(indptr + nodes[i + kAhead]);
      const int64_t node = nodes[i];
      lists[i] = {indptr[node], indptr[node + 1] - indptr[node]};
    }
  });
}

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
