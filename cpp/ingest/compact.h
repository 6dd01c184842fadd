// Compact: sparse node ids -> 0, 1, 2 ... in the order of the ids, by a bitmap with ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "disk/memory.h"

namespace outcrop::ingest {

// Costs one bit and a quarter per possible id, of which only touched pages take memory.
// Not thread-safe.
class IdSet {
 public:
  // Holds ids below `capacity`.
  explicit IdSet(uint64_t capacity);

  // Adds ids; false, and nothing promised about the set, where one is not below capacity.
  // REQUIRES: not sealed.
  bool Add(std::span<const int64_t> ids);

  // Adds ids as long as each is new and below capacity; returns how many were.
  size_t AddNew(std::span<const int64_t> ids);

  // Ends adding; returns how many distinct ids there are.
  uint64_t Seal();

  // The number of ids in the set below `id`. REQUIRES: sealed, id < capacity.
  uint64_t Rank(uint64_t id) const;

  // Replaces the ids of each record by their ranks. REQUIRES: sealed, all ids in the set.
  template <typename Record>
  void Relabel(std::span<Record> records) const;

  // Writes ids of the set in ascending order from `*from` on, as many as fit, and moves `*from`
  // past them; returns how many.
  size_t List(uint64_t* from, std::span<int64_t> out) const;

  static constexpr uint64_t MemoryBytes(uint64_t capacity) { return capacity / 8 + capacity / 32; }

 private:
  static constexpr uint64_t kBlockWords = 4;  // per entry of ranks_: a rank looks at 4 words

  uint64_t* words() const { return reinterpret_cast<uint64_t*>(words_.data()); }
  uint64_t* ranks() const { return reinterpret_cast<uint64_t*>(ranks_.data()); }

  const uint64_t capacity_;
  const uint64_t num_words_;
  disk::AlignedMemory words_;  // the bitmap
  disk::AlignedMemory ranks_;  // ids before each block
};

}  // namespace outcrop::ingest
