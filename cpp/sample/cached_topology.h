// Cached topology: drawn edges -> their entries, from lists in memory, and the rest from disk.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <variant>
#include <vector>

#include "cache/macro_lists.h"
#include "cache/neighbor_lists.h"
#include "cache/offsets.h"
#include "disk/engine.h"
#include "disk/file.h"
#include "memory/buffer.h"
#include "sample/topology.h"

namespace outcrop::sample {

// indptr, in memory or mapped, or what was made of it.
using Offsets = std::variant<std::span<const int64_t>, const cache::CompressedOffsets*>;

// Where a node's list is not cached, only its drawn entries are read: those of a whole frontier by
// one transfer, in ascending order, so that what shares a page is read together. Thread-safe.
template <typename Index>
class CachedTopology final : public Topology {
 public:
  // Entries of `indices` begin at byte `base` of `file`. `macro`: looked at for lists that are not
  // among `lists`; may be null. Throws std::invalid_argument where sizes contradict each other, or
  // offsets are not complete. REQUIRES: what offsets are in, lists, macro and engine outlive this
  // object.
  CachedTopology(Offsets offsets, cache::NeighborLists& lists, disk::Engine& engine,
                 std::shared_ptr<const disk::File> file, uint64_t base,
                 cache::MacroLists* macro = nullptr);

  int64_t num_nodes() const override { return num_nodes_; }
  int64_t num_edges() const override { return num_edges_; }
  void Lists(std::span<const int64_t> nodes, threads::Pool& pool, std::span<List> lists) override;
  // Also throws disk::IoError, disk::Cancelled. A cancelled pool is noticed while the disk works.
  void Fetch(const Drawn& drawn, threads::Pool& pool, std::span<int64_t> neighbours) override;

  // What is kept for the next Fetch, of as many as were under way at once.
  uint64_t capacity_bytes() const;
  // The most that one Fetch of `nodes` nodes and `entries` drawn entries leads to, beside 16 bytes
  // for each entry of nodes that are in the frontier more than once, while they are sorted.
  static uint64_t MostBytes(uint64_t nodes, uint64_t entries);

 private:
  // A node whose entries are read.
  struct Miss {
    int64_t node;
    uint32_t index;  // in the frontier
    uint32_t at;     // its first entry among those that are read
  };

  // The memory of one Fetch.
  struct Scratch {
    memory::Buffer<Miss> misses, spare;
    memory::Buffer<int64_t> edges;    // to read, ascending
    memory::Buffer<uint32_t> places;  // where each belongs
    memory::Buffer<Index> entries;    // what was read
    uint64_t capacity_bytes() const {
      return misses.capacity_bytes() + spare.capacity_bytes() + edges.capacity_bytes() +
             places.capacity_bytes() + entries.capacity_bytes();
    }
  };

  std::unique_ptr<Scratch> TakeScratch();
  void ReturnScratch(std::unique_ptr<Scratch> scratch);
  void FetchCached(const Drawn& drawn, threads::Pool& pool, std::span<int64_t> neighbours,
                   memory::Buffer<Miss>& misses);
  void FetchMissed(const Drawn& drawn, threads::Pool& pool, std::span<int64_t> neighbours,
                   Scratch& scratch);
  static void SortByNode(Scratch& scratch);
  static void ListEdges(const Drawn& drawn, threads::Pool& pool, Scratch& scratch);
  void Read(threads::Pool& pool, Scratch& scratch);

  // Constant after construction
  const Offsets offsets_;
  cache::NeighborLists& lists_;
  cache::MacroLists& macro_;
  disk::Engine& engine_;
  const std::shared_ptr<const disk::File> file_;
  const uint64_t base_;
  int64_t num_nodes_, num_edges_;
  cache::MacroLists no_macro_{sizeof(Index)};

  mutable std::mutex mutex_;
  // Guarded by mutex_
  std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace outcrop::sample
