// Visits: lists of nodes -> the nodes in the order in which a breadth-first search meets them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "disk/memory.h"

namespace outcrop::ingest {

// The queue of a search, from which nothing is taken: in the end it is the order of all nodes.
// Costs a bit and 4 bytes per node (8 beyond 2^32 nodes). Not thread-safe.
class Visits {
 public:
  explicit Visits(uint64_t num_nodes);

  // Appends each id that was not met before. Returns how many ids were looked at: fewer than all
  // where one is no node.
  template <typename Index>
  size_t Meet(std::span<const Index> ids);

  struct Roots {
    size_t done = 0;     // roots that were looked at
    uint64_t begin = 0;  // where in the queue those begin that the last one's list added
    bool bad_id = false;
  };
  // Roots in order, each with the next counts[i] of `lists` as its list: one that was not met is
  // appended, and its list after it. Ends behind the first whose list adds anything.
  // REQUIRES: lists.size() is the sum of counts.
  template <typename Index>
  Roots MeetRoots(std::span<const int64_t> roots, std::span<const int64_t> counts,
                  std::span<const Index> lists);

  // Those of `ids` that were not met -> the beginning of `out`; returns how many.
  // REQUIRES: out.size() >= ids.size(), ids are nodes.
  size_t Unmet(std::span<const int64_t> ids, std::span<int64_t> out) const;

  // The queue from `first` on, as much as there is and fits; returns how many.
  size_t List(uint64_t first, std::span<int64_t> out) const;

  // Nodes that were met.
  uint64_t count() const { return count_; }

  static constexpr uint64_t MemoryBytes(uint64_t num_nodes) {
    return num_nodes / 8 + num_nodes * (num_nodes > uint64_t{1} << 32 ? 8 : 4);
  }

 private:
  bool Met(uint64_t id) const { return ((bits()[id / 64] >> (id % 64)) & 1) != 0; }
  void Append(uint64_t id);

  uint64_t* bits() const { return reinterpret_cast<uint64_t*>(bits_.data()); }
  uint32_t* narrow() const { return reinterpret_cast<uint32_t*>(queue_.data()); }
  uint64_t* wide() const { return reinterpret_cast<uint64_t*>(queue_.data()); }

  const uint64_t num_nodes_;
  const bool is_wide_;
  disk::AlignedMemory bits_;
  disk::AlignedMemory queue_;
  uint64_t count_ = 0;
};

}  // namespace outcrop::ingest
