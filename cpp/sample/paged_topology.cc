#include "sample/paged_topology.h"

#include <algorithm>
#include <array>
#include <string>

#include "sample/frontier.h"

namespace outcrop::sample {
namespace {

using disk::GuardedMap;

// Few at a time, since a thread waits for the pages of its chunk one after the other.
constexpr size_t kAtATime = GuardedMap::kMostRanges;
static_assert(kAtATime * 2 * sizeof(int64_t) <= GuardedMap::kMostBytes);

}  // namespace

template <typename Index>
PagedTopology<Index>::PagedTopology(const Array& indptr, const Array& indices, int64_t num_nodes,
                                    int64_t num_edges)
    : indptr_(indptr.file),
      indices_(indices.file),
      indptr_base_(indptr.base),
      indices_base_(indices.base),
      num_nodes_(num_nodes),
      num_edges_(num_edges) {
  std::array<int64_t, 2> ends;
  const uint64_t last = indptr_base_ + static_cast<uint64_t>(num_nodes) * sizeof(int64_t);
  indptr_.Copy(std::array{GuardedMap::Range{indptr_base_, sizeof(int64_t)},
                          GuardedMap::Range{last, sizeof(int64_t)}},
               std::as_writable_bytes(std::span(ends)));
  if (ends[0] == 0 && ends[1] == num_edges) return;
  throw BadTopology(indptr.file->path() + ": begins at edge " + std::to_string(ends[0]) +
                    " and ends at " + std::to_string(ends[1]) + " of " + std::to_string(num_edges));
}

template <typename Index>
void PagedTopology<Index>::Lists(std::span<const int64_t> nodes, threads::Pool& pool,
                                 std::span<List> lists) {
  pool.For(nodes.size(), kAtATime, [&](size_t begin, size_t end) {
    std::array<GuardedMap::Range, kAtATime> ranges;
    std::array<int64_t, 2 * kAtATime> offsets;
    const size_t count = end - begin;
    for (size_t i = 0; i < count; ++i) {
      const auto node = static_cast<uint64_t>(nodes[begin + i]);
      ranges[i] = {indptr_base_ + node * sizeof(int64_t), 2 * sizeof(int64_t)};
    }
    indptr_.Copy({ranges.data(), count},
                 std::as_writable_bytes(std::span(offsets.data(), 2 * count)));
    for (size_t i = 0; i < count; ++i) {
      lists[begin + i] = {offsets[2 * i], offsets[2 * i + 1] - offsets[2 * i]};
    }
  });
  indptr_.CheckSize();
}

template <typename Index>
void PagedTopology<Index>::Fetch(const Drawn& drawn, threads::Pool& pool,
                                 std::span<int64_t> neighbours) {
  pool.For(drawn.edge_ids.size(), kAtATime, [&](size_t begin, size_t end) {
    std::array<GuardedMap::Range, kAtATime> ranges;
    std::array<Index, kAtATime> entries;
    size_t count = 0;
    for (size_t e = begin; e < end; ++e) {
      const uint64_t offset =
          indices_base_ + static_cast<uint64_t>(drawn.edge_ids[e]) * sizeof(Index);
      if (count != 0 && ranges[count - 1].end() == offset) {
        ranges[count - 1].length += sizeof(Index);  // short lists are drawn whole
      } else {
        ranges[count++] = {offset, sizeof(Index)};
      }
    }
    indices_.Copy({ranges.data(), count},
                  std::as_writable_bytes(std::span(entries.data(), end - begin)));
    std::copy_n(entries.begin(), end - begin, neighbours.begin() + static_cast<ptrdiff_t>(begin));
  });
  indices_.CheckSize();
}

template class PagedTopology<int32_t>;
template class PagedTopology<int64_t>;

}  // namespace outcrop::sample
