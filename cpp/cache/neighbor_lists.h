// Neighbour lists in memory: node -> its cached list. One piece of memory, byte for byte as on
// disk: blocks, starts, entries. docs/format.md has the bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <span>

#include "cache/node_bits.h"

namespace outcrop::cache {

// Which of some nodes are cached: a cache line, so that a lookup costs one miss.
struct ListBlock {
  static constexpr uint64_t kNodes = NodeBits::kNodes;

  uint64_t lists_before = 0;    // cached lists of all blocks before
  uint64_t entries_before = 0;  // and their entries
  NodeBits nodes;

  static uint64_t Count(int64_t num_nodes) { return NodeBits::Blocks(num_nodes); }
};
static_assert(sizeof(ListBlock) == 64);

// A longer list is never cached: the starts of a block's lists, counted from its first entry, have
// 32 bits. What is drawn from so long a list is little of it, so it would be a bad use of memory.
inline constexpr int64_t kLongestList = int64_t{1} << 23;
static_assert(ListBlock::kNodes << 23 <= uint64_t{1} << 32);

// The lists of some nodes; none until memory is attached. Thread-safe.
class NeighborLists {
 public:
  // Entries (node ids) have entry_bytes each. REQUIRES: num_nodes >= 0.
  NeighborLists(int64_t num_nodes, uint32_t entry_bytes)
      : num_nodes_(num_nodes), entry_bytes_(entry_bytes) {}

  // What so many lists take.
  static uint64_t Bytes(int64_t num_nodes, uint32_t entry_bytes, uint64_t lists, uint64_t entries) {
    if (lists == 0) return 0;
    return EntriesAt(num_nodes, lists) + entries * entry_bytes;
  }

  // Serves lists from `memory` from now on. Throws std::invalid_argument where it cannot hold what
  // it should. REQUIRES: `memory` is not changed and lives until Detach.
  void Attach(std::span<const std::byte> memory, uint64_t lists, uint64_t entries);
  // Waits for readers; there are no lists any more.
  void Detach();

  int64_t num_nodes() const { return num_nodes_; }
  uint32_t entry_bytes() const { return entry_bytes_; }

  // The lists as they are as long as this object lives. Threads may share it.
  class Reader {
   public:
    static constexpr uint64_t kNone = ~uint64_t{0};

    explicit Reader(const NeighborLists& lists)
        : lock_(lists.mutex_),
          blocks_(lists.blocks_),
          starts_(lists.starts_),
          entries_(lists.entries_),
          num_entries_(lists.num_entries_) {}

    bool empty() const { return num_entries_ == 0; }
    uint64_t num_entries() const { return num_entries_; }
    const std::byte* entries() const { return entries_; }

    void PrefetchBlock(int64_t node) const {
      __builtin_prefetch(blocks_ + NodeBits::BlockOf(node));
    }
    void PrefetchStart(uint64_t list) const { __builtin_prefetch(starts_ + list); }
    // The number of the node's list, kNone where it is not cached. REQUIRES: !empty().
    uint64_t List(int64_t node) const {
      const ListBlock& block = blocks_[NodeBits::BlockOf(node)];
      const uint64_t bit = NodeBits::BitOf(node);
      return block.nodes.Has(bit) ? block.lists_before + block.nodes.Rank(bit) : kNone;
    }
    // Where in the entries the list begins. REQUIRES: list == List(node) != kNone.
    uint64_t Begin(int64_t node, uint64_t list) const {
      return blocks_[NodeBits::BlockOf(node)].entries_before + starts_[list];
    }

   private:
    std::shared_lock<std::shared_mutex> lock_;
    const ListBlock* blocks_;
    const uint32_t* starts_;
    const std::byte* entries_;
    uint64_t num_entries_;
  };

  // What was drawn from lists in memory (hits) and from others: nodes, and entries of them.
  struct Counts {
    std::atomic<uint64_t> hit_nodes{0}, hit_entries{0}, miss_nodes{0}, miss_entries{0};
  };
  Counts& counts() { return counts_; }

 private:
  static uint64_t EntriesAt(int64_t num_nodes, uint64_t lists) {
    return ListBlock::Count(num_nodes) * sizeof(ListBlock) + (lists + 1) / 2 * 8;
  }

  const int64_t num_nodes_;
  const uint32_t entry_bytes_;

  mutable std::shared_mutex mutex_;
  // Guarded by mutex_
  const ListBlock* blocks_ = nullptr;
  const uint32_t* starts_ = nullptr;
  const std::byte* entries_ = nullptr;
  uint64_t num_entries_ = 0;

  Counts counts_;
};

}  // namespace outcrop::cache
