// Choose lists: scores of nodes -> which lists are cached; and the parts of a cache's memory, made
// in passes over the topology.
#pragma once

#include <cstdint>
#include <span>

#include "cache/neighbor_lists.h"
#include "cache/offsets.h"

namespace outcrop::cache {

// Counts each id; counts stay at 2^32 - 1. Returns how many ids were counted: fewer than all where
// the next one is no node.
template <typename Index>
uint64_t CountIds(std::span<const Index> ids, std::span<uint32_t> counts);

struct Chosen {
  uint64_t lists = 0;
  uint64_t entries = 0;
};

// Goes through the nodes by descending score, of equals by ascending id, and takes each list that
// still fits into `room` bytes, at 4 bytes and entry_bytes per entry. Nodes without a list and
// lists above kLongestList are not taken. Sets bits of `blocks`, and no more.
// Throws std::invalid_argument for scores that are negative or NaN.
// REQUIRES: there is a score per node; `blocks` are empty and cover all nodes.
template <typename Offsets>
Chosen ChooseLists(const Offsets& offsets, std::span<const float> scores, uint32_t entry_bytes,
                   uint64_t room, std::span<ListBlock> blocks);

// Bits -> the rest of the blocks, and the start of every list.
// REQUIRES: starts.size() is the number of bits.
template <typename Offsets>
void NumberLists(const Offsets& offsets, std::span<ListBlock> blocks, std::span<uint32_t> starts);

struct Copied {
  int64_t node = 0;  // where to go on
  uint64_t entries = 0;
};

// The cached entries among `chunk`, which are edges [first_edge, first_edge + chunk.size()) -> out.
// `node`: 0 for the first chunk, then what the call before returned.
// REQUIRES: out.size() >= chunk.size(). Throws std::invalid_argument where offsets descend.
template <typename Index, typename Offsets>
Copied CopyLists(const Offsets& offsets, std::span<const ListBlock> blocks, int64_t node,
                 int64_t first_edge, std::span<const Index> chunk, std::span<Index> out);

}  // namespace outcrop::cache
