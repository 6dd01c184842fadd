// Parts of a graph's nodes: what is within them and between them, and the lists of some of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "layout/fennel.h"
#include "layout/list_stream.h"

namespace outcrop::layout {

// Counts, for each part, by one pass over all lists. Not thread-safe.
template <typename Index>
class PartCounts {
 public:
  // Counts are added to what the spans have, which have one for each part. `inside`: entries of the
  // lists of its nodes that are in the part as well. `cross`: for each node, entries that name it
  // in lists of other parts, at most 2^32 - 1; empty: not counted.
  struct Out {
    std::span<uint64_t> nodes, entries, inside;
    std::span<uint32_t> cross;
  };
  // REQUIRES: all nodes are assigned, to parts that there are.
  PartCounts(std::span<const uint32_t> assignment, Out out)
      : assignment_(assignment), out_(out), stream_(static_cast<int64_t>(assignment.size())) {}

  // See ListStream::Walk.
  ListStream::Taken Add(std::span<const int64_t> offsets, std::span<const Index> entries);

  int64_t num_edges() const { return stream_.num_edges(); }

 private:
  void Count(std::span<const Index> neighbors);

  // Constant after construction
  const std::span<const uint32_t> assignment_;
  const Out out_;

  ListStream stream_;
  uint32_t part_ = 0;  // of the node whose list is on the way
};

// The nodes of some parts and their lists, part by part, by one pass over all lists.
// Not thread-safe.
template <typename Index>
class PartLists {
 public:
  // `first_node`, `first_entry`: where in the others each part begins, which is moved on to its
  // end. `begins`: of each list, counted from `entries_before` on.
  struct Out {
    std::span<int64_t> first_node, first_entry;
    std::span<Index> nodes;
    std::span<int64_t> begins;
    std::span<Index> entries;
    int64_t entries_before = 0;
  };
  // Of parts [first_part, first_part + out.first_node.size()).
  PartLists(std::span<const uint32_t> assignment, uint32_t first_part, Out out)
      : assignment_(assignment),
        first_part_(first_part),
        out_(out),
        stream_(static_cast<int64_t>(assignment.size())) {}

  // See ListStream::Walk. Throws BadBlock where there are more lists or entries than room.
  ListStream::Taken Add(std::span<const int64_t> offsets, std::span<const Index> entries);

  int64_t num_edges() const { return stream_.num_edges(); }

 private:
  void Begin(int64_t node);
  void Copy(std::span<const Index> entries);

  // Constant after construction
  const std::span<const uint32_t> assignment_;
  const uint32_t first_part_;
  const Out out_;

  ListStream stream_;
  size_t part_ = 0;  // of the node whose list is on the way, counted from the first
};

}  // namespace outcrop::layout
