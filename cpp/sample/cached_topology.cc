#include "sample/cached_topology.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "sample/frontier.h"
#include "sample/waiting.h"

namespace outcrop::sample {
namespace {

constexpr size_t kAhead = 16;  // lookups whose memory is asked for before it is used
constexpr size_t kGrain = 256;

void Check(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

// Calls use(offsets) with either kind.
template <typename Use>
void With(const Offsets& offsets, Use use) {
  if (const auto* indptr = std::get_if<std::span<const int64_t>>(&offsets)) {
    Check(!indptr->empty() && indptr->back() >= 0, "indptr needs at least one entry");
    return use(cache::PlainOffsets(*indptr));
  }
  const auto* compressed = std::get<const cache::CompressedOffsets*>(offsets);
  Check(compressed->complete(), "entries of indptr are missing");
  use(*compressed);
}

}  // namespace

template <typename Index>
CachedTopology<Index>::CachedTopology(Offsets offsets, cache::NeighborLists& lists,
                                      disk::Engine& engine, std::shared_ptr<const disk::File> file,
                                      uint64_t base, cache::MacroLists* macro)
    : offsets_(offsets),
      lists_(lists),
      macro_(macro == nullptr ? no_macro_ : *macro),
      engine_(engine),
      file_(std::move(file)),
      base_(base) {
  With(offsets, [&](const auto& of) {
    num_nodes_ = of.num_nodes();
    num_edges_ = of.num_edges();
  });
  Check(lists.num_nodes() == num_nodes_, "the lists are of another number of nodes");
  Check(lists.entry_bytes() == sizeof(Index) && macro_.entry_bytes() == sizeof(Index),
        "the lists have entries of another size");
  const uint64_t size = file_->size();
  Check(base <= size && static_cast<uint64_t>(num_edges_) <= (size - base) / sizeof(Index),
        "indptr ends beyond the file of indices");
}

template <typename Index>
void CachedTopology<Index>::Lists(std::span<const int64_t> nodes, threads::Pool& pool,
                                  std::span<List> lists) {
  With(offsets_, [&](const auto& of) { ListsOf(of, nodes, pool, lists); });
}

template <typename Index>
void CachedTopology<Index>::Fetch(const Drawn& drawn, threads::Pool& pool,
                                  std::span<int64_t> neighbours) {
  constexpr size_t kMost = std::numeric_limits<uint32_t>::max();
  if (drawn.nodes.size() > kMost || drawn.edge_ids.size() > kMost) {
    throw std::length_error("a frontier of more than 2^32 nodes or edges");
  }
  std::unique_ptr<Scratch> scratch = TakeScratch();
  FetchCached(drawn, pool, neighbours, scratch->misses);
  if (scratch->misses.size() != 0) FetchMissed(drawn, pool, neighbours, *scratch);
  ReturnScratch(std::move(scratch));
}

// What an exception prevents from being returned is freed.
template <typename Index>
std::unique_ptr<typename CachedTopology<Index>::Scratch> CachedTopology<Index>::TakeScratch() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(free_.back());
  free_.pop_back();
  return scratch;
}

template <typename Index>
void CachedTopology<Index>::ReturnScratch(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

template <typename Index>
uint64_t CachedTopology<Index>::capacity_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& scratch : free_) bytes += scratch->capacity_bytes();
  return bytes;
}

template <typename Index>
uint64_t CachedTopology<Index>::MostBytes(uint64_t nodes, uint64_t entries) {
  constexpr uint64_t kLeast = 5 * (64 << 10);  // of five buffers
  const uint64_t per_entry = sizeof(int64_t) + sizeof(uint32_t) + sizeof(Index);
  const uint64_t wanted = 2 * sizeof(Miss) * nodes + per_entry * entries;
  return kLeast + wanted + wanted / 2;  // a buffer grows by half
}

// Entries of cached lists -> neighbours; the nodes of the others -> misses, in any order.
template <typename Index>
void CachedTopology<Index>::FetchCached(const Drawn& drawn, threads::Pool& pool,
                                        std::span<int64_t> neighbours,
                                        memory::Buffer<Miss>& misses) {
  using Reader = cache::NeighborLists::Reader;
  const Reader reader(lists_);
  const cache::MacroLists::Reader macro(macro_);
  misses.resize(drawn.nodes.size());
  std::atomic<size_t> missed{0};
  struct Hits {
    std::atomic<uint64_t> nodes{0}, entries{0};
  };
  Hits hits, macro_hits;
  const auto* entries = reinterpret_cast<const Index*>(reader.entries());
  const auto* macro_entries = reinterpret_cast<const Index*>(macro.entries());
  // A list in memory, and how many entries there are from its first on.
  struct Found {
    const Index* list = nullptr;
    uint64_t entries = 0;
  };
  pool.For(drawn.nodes.size(), kGrain, [&](size_t begin, size_t end) {
    std::array<uint64_t, kGrain> list;
    std::array<Found, kGrain> found;
    std::array<bool, kGrain> of_macro;
    const bool none = reader.empty(), no_macro = macro.empty();
    for (size_t i = begin; i < end; ++i) {
      if (none) {
        list[i - begin] = Reader::kNone;
      } else {
        if (i + kAhead < end) reader.PrefetchBlock(drawn.nodes[i + kAhead]);
        list[i - begin] = reader.List(drawn.nodes[i]);
        if (list[i - begin] != Reader::kNone) reader.PrefetchStart(list[i - begin]);
      }
      if (!no_macro && list[i - begin] == Reader::kNone) macro.Prefetch(drawn.nodes[i]);
    }
    for (size_t i = begin; i < end; ++i) {
      of_macro[i - begin] = false;
      if (list[i - begin] != Reader::kNone) {
        const uint64_t start = reader.Begin(drawn.nodes[i], list[i - begin]);
        found[i - begin] = {entries + start, reader.num_entries() - start};
      } else if (!no_macro) {
        const uint64_t start = macro.Begin(drawn.nodes[i]);
        if (start == cache::MacroLists::Reader::kNone) continue;
        found[i - begin] = {macro_entries + start, macro.num_entries() - start};
        of_macro[i - begin] = true;
      }
      __builtin_prefetch(found[i - begin].list);
    }
    std::array<Miss, kGrain> here;
    size_t missed_here = 0;
    std::array<uint64_t, 2> nodes_here{}, entries_here{};  // of lists, of the macro batch
    for (size_t i = begin; i < end; ++i) {
      const uint64_t first = drawn.first[i], last = drawn.first[i + 1];
      if (first == last) continue;
      const Found& at = found[i - begin];
      if (at.list == nullptr) {
        here[missed_here++] = {drawn.nodes[i], static_cast<uint32_t>(i), 0};
        continue;
      }
      for (uint64_t e = first; e < last; ++e) {
        const auto entry = static_cast<uint64_t>(drawn.edge_ids[e] - drawn.lists[i].begin);
        if (entry >= at.entries) throw BadTopology("the cached lists are of another graph");
        neighbours[e] = static_cast<int64_t>(at.list[entry]);
      }
      ++nodes_here[of_macro[i - begin]];
      entries_here[of_macro[i - begin]] += last - first;
    }
    std::copy_n(here.begin(), missed_here, misses.data() + missed.fetch_add(missed_here));
    hits.nodes += nodes_here[0];
    hits.entries += entries_here[0];
    macro_hits.nodes += nodes_here[1];
    macro_hits.entries += entries_here[1];
  });
  misses.resize(missed);
  cache::NeighborLists::Counts& counts = lists_.counts();
  counts.hit_nodes += hits.nodes;
  counts.hit_entries += hits.entries;
  counts.miss_nodes += missed;
  counts.miss_entries += drawn.edge_ids.size() - hits.entries - macro_hits.entries;
  macro_.counts().hit_nodes += macro_hits.nodes;
  macro_.counts().hit_entries += macro_hits.entries;
}

template <typename Index>
void CachedTopology<Index>::FetchMissed(const Drawn& drawn, threads::Pool& pool,
                                        std::span<int64_t> neighbours, Scratch& scratch) {
  SortByNode(scratch);
  ListEdges(drawn, pool, scratch);
  Read(pool, scratch);
  pool.For(scratch.entries.size(), 4 * kGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      neighbours[scratch.places[i]] = static_cast<int64_t>(scratch.entries[i]);
    }
  });
}

// By (node, index): a radix sort of both, since threads found the misses in any order.
template <typename Index>
void CachedTopology<Index>::SortByNode(Scratch& scratch) {
  memory::Buffer<Miss>& misses = scratch.misses;
  uint64_t most_node = 0, most_index = 0;
  for (size_t i = 0; i < misses.size(); ++i) {
    most_node = std::max(most_node, static_cast<uint64_t>(misses[i].node));
    most_index = std::max<uint64_t>(most_index, misses[i].index);
  }
  scratch.spare.resize(misses.size());
  constexpr uint32_t kBits = 11;
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  const auto sort_by = [&](uint64_t most, auto key) {
    for (uint32_t shift = 0; shift < 64 && most >> shift != 0; shift += kBits) {
      std::array<size_t, kMask + 2> at{};
      for (size_t i = 0; i < misses.size(); ++i) ++at[(key(misses[i]) >> shift & kMask) + 1];
      for (size_t digit = 0; digit < kMask; ++digit) at[digit + 1] += at[digit];
      for (size_t i = 0; i < misses.size(); ++i) {
        scratch.spare[at[key(misses[i]) >> shift & kMask]++] = misses[i];
      }
      std::swap(misses, scratch.spare);
    }
  };
  sort_by(most_index, [](const Miss& miss) { return uint64_t{miss.index}; });
  sort_by(most_node, [](const Miss& miss) { return static_cast<uint64_t>(miss.node); });
}

// Sorted misses -> the edges to read, ascending, and their places.
template <typename Index>
void CachedTopology<Index>::ListEdges(const Drawn& drawn, threads::Pool& pool, Scratch& scratch) {
  memory::Buffer<Miss>& misses = scratch.misses;
  uint64_t total = 0;
  for (size_t m = 0; m < misses.size(); ++m) {
    misses[m].at = static_cast<uint32_t>(total);
    total += drawn.first[misses[m].index + 1] - drawn.first[misses[m].index];
  }
  scratch.edges.resize(total);
  scratch.places.resize(total);
  pool.For(misses.size(), kGrain, [&](size_t begin, size_t end) {
    for (size_t m = begin; m < end; ++m) {
      size_t at = misses[m].at;
      for (uint64_t e = drawn.first[misses[m].index]; e < drawn.first[misses[m].index + 1]; ++e) {
        scratch.edges[at] = drawn.edge_ids[e];
        scratch.places[at++] = static_cast<uint32_t>(e);
      }
    }
  });
  // Lists of ascending nodes ascend, but those of one node overlap.
  pool.For(misses.size(), kGrain, [&](size_t begin, size_t end) {
    std::vector<std::pair<int64_t, uint32_t>> pairs;
    for (size_t m = begin; m < end; ++m) {
      const int64_t node = misses[m].node;
      if (m > 0 && misses[m - 1].node == node) continue;  // whoever has its first has all
      size_t last = m + 1;
      while (last < misses.size() && misses[last].node == node) ++last;
      if (last == m + 1) continue;
      const size_t from = misses[m].at;
      const size_t to = last < misses.size() ? misses[last].at : static_cast<size_t>(total);
      pairs.clear();
      for (size_t i = from; i < to; ++i) pairs.emplace_back(scratch.edges[i], scratch.places[i]);
      std::sort(pairs.begin(), pairs.end());
      for (size_t i = from; i < to; ++i) {
        std::tie(scratch.edges[i], scratch.places[i]) = pairs[i - from];
      }
    }
  });
}

template <typename Index>
void CachedTopology<Index>::Read(threads::Pool& pool, Scratch& scratch) {
  scratch.entries.resize(scratch.edges.size());
  auto* memory = reinterpret_cast<std::byte*>(scratch.entries.data());
  auto extents = disk::ExtentList::Rows(base_, sizeof(Index), scratch.edges, {}, memory);
  WaitFor(*engine_.Read(file_, std::move(extents)), pool);
}

template class CachedTopology<int32_t>;
template class CachedTopology<int64_t>;

}  // namespace outcrop::sample
