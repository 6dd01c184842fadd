// Residents: who is in which slot of a cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "cache/node_table.h"
#include "memory/buffer.h"

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

  // What follows depends on nodes() alone, not on how they came there. `touched`: the only nodes
  // that will be looked up or added, sealed; nullptr: any.
  void Open(const TouchedNodes* touched = nullptr) {
    if (touched != nullptr) {
      table_.emplace(*touched);
    } else {
      table_.emplace(num_nodes_, slots());
    }
    for (uint32_t slot = 0; slot < slots(); ++slot) {
      if (nodes_[slot] != kNobody) table_->Set(nodes_[slot], slot);
    }
    ListFree();
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
    constexpr size_t kAhead = 16;  // each node and each entry is a cache miss of its own, or two
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i + 3 * kAhead < slots.size()) __builtin_prefetch(&nodes_[slots[i + 3 * kAhead]]);
      if (i + 2 * kAhead < slots.size()) table_->PrefetchPlace(nodes_[slots[i + 2 * kAhead]]);
      if (i + kAhead < slots.size()) table_->Prefetch(nodes_[slots[i + kAhead]]);
      Remove(slots[i]);
    }
  }

  // Everybody leaves. REQUIRES: closed.
  void Clear() {
    std::fill_n(nodes_.data(), nodes_.size(), kNobody);
    ListFree();
  }

  // Others take their place, as nodes() gives them. REQUIRES: closed. Throws std::invalid_argument,
  // and leaves everything as it was, where that cannot be: another number of slots, a node that
  // the graph does not have, or one in two slots.
  void Restore(std::span<const int64_t> nodes) {
    Check(nodes);
    std::copy(nodes.begin(), nodes.end(), nodes_.data());
    ListFree();
  }

 private:
  // Tells nodes that come twice, in the smaller of two structures.
  class Seen {
   public:
    Seen(int64_t num_nodes, uint32_t expected) {
      if (TouchedNodes::Bytes(num_nodes) <= NodeTable::Bytes(num_nodes, expected)) {
        bits_.emplace(num_nodes);
      } else {
        table_.emplace(num_nodes, expected);
      }
    }
    // Whether it was not there before.
    bool Add(int64_t node) {
      return bits_ ? bits_->Add(node) : table_->Exchange(node, 0) == NodeTable::kNone;
    }

   private:
    std::optional<TouchedNodes> bits_;
    std::optional<NodeTable> table_;
  };

  void Check(std::span<const int64_t> nodes) const {
    if (nodes.size() != slots()) {
      throw std::invalid_argument("contents need an entry for each of the " +
                                  std::to_string(slots()) + " slots (got " +
                                  std::to_string(nodes.size()) + ")");
    }
    Seen seen(num_nodes_, slots());
    for (uint32_t slot = 0; slot < slots(); ++slot) {
      const int64_t node = nodes[slot];
      if (node == kNobody) continue;
      if (node < 0 || node >= num_nodes_) {
        throw std::invalid_argument("contents are node ids up to " +
                                    std::to_string(num_nodes_ - 1) + ", or -1 (got " +
                                    std::to_string(node) + ")");
      }
      if (!seen.Add(node)) {
        throw std::invalid_argument("a node is in one slot only (got node " + std::to_string(node) +
                                    " twice)");
      }
    }
  }

  void ListFree() {
    free_count_ = 0;
    for (uint32_t slot = slots(); slot-- > 0;) {  // so that slots are taken in ascending order
      if (nodes_[slot] == kNobody) free_[free_count_++] = slot;
    }
  }

  const int64_t num_nodes_;
  memory::Buffer<int64_t> nodes_;  // by slot
  memory::Buffer<uint32_t> free_;  // the first free_count_ are free slots
  size_t free_count_ = 0;
  std::optional<NodeTable> table_;
};

}  // namespace outcrop::cache
