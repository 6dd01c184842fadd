// Node table: node id -> a 32-bit value, in one of three structures.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "cache/touched.h"
#include "memory/buffer.h"

namespace outcrop::cache {

// Of any nodes: an entry for every node of the graph where that is at most twice as large as a hash
// table of those that are expected, since it is several times as fast; else the hash table, which
// grows when there are more. Of nodes that are known: an entry for each of them. Not thread-safe.
class NodeTable {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  // Graphs for all of whose nodes a table takes no more have no use for tables of touched ones.
  static constexpr uint64_t kSmallBytes = 64 << 20;

  NodeTable(int64_t num_nodes, int64_t expected) {
    if (Dense(num_nodes, expected)) {
      AllocateValues(static_cast<size_t>(num_nodes));
    } else {
      Allocate(Slots(expected));
    }
  }

  // Of touched nodes alone: others have no value, whatever is set.
  // REQUIRES: `touched` is sealed, and outlives the table.
  explicit NodeTable(const TouchedNodes& touched) : touched_(&touched) {
    AllocateValues(touched.count());
  }

  // What a table of so many nodes takes, as long as no more than `expected` are in it.
  static uint64_t Bytes(int64_t num_nodes, int64_t expected) {
    if (Dense(num_nodes, expected)) return 4 * static_cast<uint64_t>(num_nodes);
    return Slots(expected) * sizeof(Entry);
  }

  // What a table of so many touched nodes takes, with what finds them.
  static uint64_t TouchedBytes(int64_t num_nodes, int64_t touched) {
    return TouchedNodes::Bytes(num_nodes) + 4 * static_cast<uint64_t>(touched);
  }

  bool dense() const { return flat() && touched_ == nullptr; }
  uint64_t capacity_bytes() const { return values_.capacity_bytes() + entries_.capacity_bytes(); }

  // What Prefetch itself needs: to be asked for still earlier.
  void PrefetchPlace(int64_t node) const {
    if (touched_ != nullptr) touched_->Prefetch(node);
  }
  void Prefetch(int64_t node) const {
    if (flat()) {
      __builtin_prefetch(Value(node));
    } else {
      __builtin_prefetch(&entries_[Home(node)]);
    }
  }

  // The value of a node; kNone where it has none.
  uint32_t Get(int64_t node) const {
    if (flat()) {
      const uint32_t* value = Value(node);
      return value == nullptr ? kNone : *value;
    }
    const size_t slot = Find(node);
    return entries_[slot].node == node ? entries_[slot].value : kNone;
  }

  // REQUIRES of both: value != kNone.
  void Set(int64_t node, uint32_t value) { Exchange(node, value); }

  // Sets the value, and returns the one before; kNone where there was none.
  uint32_t Exchange(int64_t node, uint32_t value) {
    if (flat()) {
      uint32_t* old = Value(node);
      return old == nullptr ? kNone : std::exchange(*old, value);
    }
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

  // What a table takes of so many nodes that can be marked before it is made: of large graphs,
  // where that is less, one of touched nodes.
  static uint64_t MarkedBytes(int64_t num_nodes, int64_t marked) {
    marked = std::min(marked, num_nodes);
    const uint64_t of_any = Bytes(num_nodes, marked);
    if (4 * static_cast<uint64_t>(num_nodes) <= kSmallBytes) return of_any;
    return std::min(of_any, TouchedBytes(num_nodes, marked));
  }
  static bool WantsMarks(int64_t num_nodes, int64_t marked) {
    return MarkedBytes(num_nodes, marked) != Bytes(num_nodes, std::min(marked, num_nodes));
  }

  // f(node, value) for each node that has one; in ascending order, but for a hash table.
  template <typename F>
  void ForEach(F f) const {
    if (touched_ != nullptr) {
      size_t place = 0;
      touched_->ForEach([&](int64_t node) {
        const uint32_t value = values_[place++];
        if (value != kNone) f(node, value);
      });
      return;
    }
    for (size_t node = 0; node < values_.size(); ++node) {
      if (values_[node] != kNone) f(static_cast<int64_t>(node), values_[node]);
    }
    for (size_t slot = 0; slot < entries_.size(); ++slot) {
      if (entries_[slot].node != kEmpty) f(entries_[slot].node, entries_[slot].value);
    }
  }

  void Erase(int64_t node) {
    if (flat()) {
      if (uint32_t* value = Value(node)) *value = kNone;
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

  bool flat() const { return entries_.size() == 0; }
  // Where the value of a node is; nullptr: it is not touched. REQUIRES: flat().
  const uint32_t* Value(int64_t node) const {
    if (touched_ == nullptr) return &values_[static_cast<size_t>(node)];
    const uint32_t place = touched_->Place(node);
    return place == TouchedNodes::kNone ? nullptr : &values_[place];
  }
  uint32_t* Value(int64_t node) { return const_cast<uint32_t*>(std::as_const(*this).Value(node)); }

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

  void AllocateValues(size_t count) {
    values_.resize(count);
    std::fill_n(values_.data(), count, kNone);
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

  memory::Buffer<uint32_t> values_;        // by node, or by its place among those that are touched
  const TouchedNodes* touched_ = nullptr;  // those, where the table is of them
  memory::Buffer<Entry> entries_;
  size_t count_ = 0, mask_ = 0;
  int shift_ = 0;
};

}  // namespace outcrop::cache
