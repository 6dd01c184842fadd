// Node table: node id -> a 32-bit value, in one of two structures, by their sizes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "memory/buffer.h"

namespace outcrop::cache {

// An entry for every node of the graph where that is at most twice as large as a hash table of
// those that are expected, since it is several times as fast; else the hash table, which grows when
// there are more. Not thread-safe.
class NodeTable {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  NodeTable(int64_t num_nodes, int64_t expected) {
    if (Dense(num_nodes, expected)) {
      dense_.resize(static_cast<size_t>(num_nodes));
      std::memset(dense_.data(), 0xFF, dense_.size() * sizeof(uint32_t));
    } else {
      Allocate(Slots(expected));
    }
  }

  // What a table of so many nodes takes, as long as no more than `expected` are in it.
  static uint64_t Bytes(int64_t num_nodes, int64_t expected) {
    if (Dense(num_nodes, expected)) return 4 * static_cast<uint64_t>(num_nodes);
    return Slots(expected) * sizeof(Entry);
  }

  bool dense() const { return entries_.size() == 0; }
  uint64_t capacity_bytes() const { return dense_.capacity_bytes() + entries_.capacity_bytes(); }

  void Prefetch(int64_t node) const {
    if (dense()) {
      __builtin_prefetch(&dense_[static_cast<size_t>(node)]);
    } else {
      __builtin_prefetch(&entries_[Home(node)]);
    }
  }

  // The value of a node; kNone where it has none.
  uint32_t Get(int64_t node) const {
    if (dense()) return dense_[static_cast<size_t>(node)];
    const size_t slot = Find(node);
    return entries_[slot].node == node ? entries_[slot].value : kNone;
  }

  // REQUIRES of both: value != kNone.
  void Set(int64_t node, uint32_t value) { Exchange(node, value); }

  // Sets the value, and returns the one before; kNone where there was none.
  uint32_t Exchange(int64_t node, uint32_t value) {
    if (dense()) return std::exchange(dense_[static_cast<size_t>(node)], value);
    size_t slot = Find(node);
    if (entries_[slot].node == node) return std::exchange(entries_[slot].value, value);
    if (10 * (count_ + 1) > 7 * entries_.size()) {
      Grow();
      slot = Find(node);
    }
    ++count_;
    entries_[slot] = {node, value};
    return kNone;
  }

  // f(node, value) for each node that has one; in ascending order only if dense().
  template <typename F>
  void ForEach(F f) const {
    for (size_t node = 0; node < dense_.size(); ++node) {
      if (dense_[node] != kNone) f(static_cast<int64_t>(node), dense_[node]);
    }
    for (size_t slot = 0; slot < entries_.size(); ++slot) {
      if (entries_[slot].node != kEmpty) f(entries_[slot].node, entries_[slot].value);
    }
  }

  void Erase(int64_t node) {
    if (dense()) {
      dense_[static_cast<size_t>(node)] = kNone;
      return;
    }
    size_t hole = Find(node);
    if (entries_[hole].node != node) return;
    --count_;
    // Whatever would be found through the hole moves into it.
    for (size_t slot = Next(hole); entries_[slot].node >= 0; slot = Next(slot)) {
      const size_t home = Home(entries_[slot].node);
      if (((slot - home) & mask_) >= ((slot - hole) & mask_)) {
        entries_[hole] = entries_[slot];
        hole = slot;
      }
    }
    entries_[hole].node = kEmpty;
  }

 private:
  static constexpr int64_t kEmpty = -1;
  struct Entry {
    int64_t node;
    uint32_t value;
  };

  static bool Dense(int64_t num_nodes, int64_t expected) {
    return 4 * static_cast<uint64_t>(num_nodes) <= 2 * Slots(expected) * sizeof(Entry);
  }

  // Two thirds full at most, a power of two.
  static size_t Slots(int64_t expected) {
    return std::bit_ceil(static_cast<size_t>(expected) * 3 / 2 + 16);
  }

  size_t Home(int64_t node) const {
    return static_cast<size_t>((static_cast<uint64_t>(node) * 0x9E3779B97F4A7C15) >> shift_);
  }
  size_t Next(size_t slot) const { return (slot + 1) & mask_; }

  // Where the node is, or the free slot where it would be.
  size_t Find(int64_t node) const {
    size_t slot = Home(node);
    while (entries_[slot].node != node && entries_[slot].node != kEmpty) slot = Next(slot);
    return slot;
  }

  void Allocate(size_t slots) {
    entries_.resize(slots);
    for (size_t i = 0; i < slots; ++i) entries_[i].node = kEmpty;
    mask_ = slots - 1;
    shift_ = 64 - std::countr_zero(slots);
  }

  void Grow() {
    memory::Buffer<Entry> old;
    std::swap(old, entries_);
    Allocate(old.size() * 2);
    for (size_t i = 0; i < old.size(); ++i) {
      if (old[i].node != kEmpty) entries_[Find(old[i].node)] = old[i];
    }
  }

  memory::Buffer<uint32_t> dense_;
  memory::Buffer<Entry> entries_;
  size_t count_ = 0, mask_ = 0;
  int shift_ = 0;
};

}  // namespace outcrop::cache
