// Residents: who is in which slot of a cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "budget/buffer.h"
#include "cache/node_table.h"

namespace outcrop::cache {

// The slots are kept for ever, the table from nodes to slots only between Open and Close: it is
// the larger part, and others need its memory in the meantime. Not thread-safe.
class Residents {
 public:
  // REQUIRES: slots < 2^31.
  Residents(int64_t num_nodes, uint32_t slots) : num_nodes_(num_nodes) {
    nodes_.resize(slots);
    free_.resize(slots);
    Clear();
  }

  static constexpr int64_t kNobody = -1;
  // What is kept for each slot, without the table.
  static constexpr uint64_t kSlotBytes = sizeof(int64_t) + sizeof(uint32_t);

  uint32_t slots() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_count_); }
  // By slot; kNobody where it is free.
  std::span<const int64_t> nodes() const { return nodes_; }

  void Open() {
    table_.emplace(num_nodes_, slots());
    for (uint32_t slot = 0; slot < slots(); ++slot) {
      if (nodes_[slot] != kNobody) table_->Set(nodes_[slot], slot);
    }
  }
  void Close() { table_.reset(); }

  // REQUIRES of all below: open.
  NodeTable& table() { return *table_; }

  // Takes a free slot. REQUIRES: free() > 0.
  uint32_t Add(int64_t node) {
    const uint32_t slot = free_[--free_count_];
    nodes_[slot] = node;
    table_->Set(node, slot);
    return slot;
  }

  void Remove(uint32_t slot) {
    table_->Erase(nodes_[slot]);
    nodes_[slot] = kNobody;
    free_[free_count_++] = slot;
  }

  void Remove(std::span<const uint32_t> slots) {
    constexpr size_t kAhead = 16;  // each node and each entry is a cache miss of its own
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i + 2 * kAhead < slots.size()) __builtin_prefetch(&nodes_[slots[i + 2 * kAhead]]);
      if (i + kAhead < slots.size()) table_->Prefetch(nodes_[slots[i + kAhead]]);
      Remove(slots[i]);
    }
  }

  // Everybody leaves.
  void Clear() {
    free_count_ = slots();
    for (uint32_t i = 0; i < slots(); ++i) {
      nodes_[i] = kNobody;
      free_[i] = slots() - 1 - i;  // so that slots are taken in ascending order
    }
  }

 private:
  const int64_t num_nodes_;
  budget::Buffer<int64_t> nodes_;  // by slot
  budget::Buffer<uint32_t> free_;  // the first free_count_ are free slots
  size_t free_count_ = 0;
  std::optional<NodeTable> table_;
};

}  // namespace outcrop::cache
