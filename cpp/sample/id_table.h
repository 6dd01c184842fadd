// Hash table: ids -> their index in an array that grows, as relabelling needs it.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "memory/buffer.h"

namespace outcrop::sample {

// Entries hold an index and 32 bits of the id, so that a lookup nearly always touches one cache
// line. Not thread-safe.
class IdTable {
 public:
  // Forgets everything; room for `expected` ids before it has to grow.
  void Reset(size_t expected) {
    count_ = 0;
    const size_t slots = std::bit_ceil(std::max<size_t>(expected * 2, 1024));
    if (slots > entries_.size() || slots * 8 < entries_.size()) entries_.resize(slots);
    SetSlots(entries_.size());
  }

  static uint64_t Hash(uint64_t id) { return id * 0x9E3779B97F4A7C15; }

  void Prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[hash >> shift_]); }

  // The index of the id with this hash and tag, or kNone. `same(index)` decides where tags agree.
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  template <typename Same>
  uint32_t Find(uint64_t hash, uint32_t tag, Same same) const {
    for (size_t slot = hash >> shift_;; slot = (slot + 1) & mask_) {
      const uint64_t entry = entries_[slot];
      if (entry == 0) return kNone;
      const auto index = static_cast<uint32_t>(entry) - 1;
      if (static_cast<uint32_t>(entry >> 32) == tag && same(index)) return index;
    }
  }

  // As Find, but a missing id gets `index`. `hash_of(i)` must give the hash of the id at index i.
  // REQUIRES: index < 2^32 - 1.
  template <typename Same, typename HashOf>
  uint32_t FindOrInsert(uint64_t hash, uint32_t tag, uint32_t index, Same same, HashOf hash_of) {
    size_t slot = hash >> shift_;
    for (;; slot = (slot + 1) & mask_) {
      const uint64_t entry = entries_[slot];
      if (entry == 0) break;
      const auto found = static_cast<uint32_t>(entry) - 1;
      if (static_cast<uint32_t>(entry >> 32) == tag && same(found)) return found;
    }
    entries_[slot] = uint64_t{tag} << 32 | (uint64_t{index} + 1);
    if (++count_ * 2 > entries_.size()) Grow(hash_of);
    return index;
  }

  uint64_t capacity_bytes() const { return entries_.capacity_bytes() + old_.capacity_bytes(); }

 private:
  void SetSlots(size_t slots) {
    shift_ = 64 - std::countr_zero(slots);
    mask_ = slots - 1;
    std::memset(entries_.data(), 0, slots * sizeof(uint64_t));
  }

  template <typename HashOf>
  void Grow(HashOf hash_of) {
    std::swap(entries_, old_);
    entries_.resize(old_.size() * 2);
    SetSlots(entries_.size());
    for (size_t i = 0; i < old_.size(); ++i) {
      if (old_[i] == 0) continue;
      size_t slot = hash_of(static_cast<uint32_t>(old_[i]) - 1) >> shift_;
      while (entries_[slot] != 0) slot = (slot + 1) & mask_;
      entries_[slot] = old_[i];
    }
    old_ = memory::Buffer<uint64_t>();
  }

  memory::Buffer<uint64_t> entries_, old_;
  size_t count_ = 0, mask_ = 0;
  int shift_ = 64;
};

}  // namespace outcrop::sample
