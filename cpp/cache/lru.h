// LRU: the rows used last stay; what a cache can do without knowing the future.
#pragma once

#include <cstdint>
#include <span>

#include "cache/changes.h"
#include "cache/residents.h"
#include "memory/buffer.h"

namespace outcrop::cache {

// The rows of a batch count as used at once: of a batch larger than the cache, the rows that were
// there and the first others stay. Not thread-safe.
class Lru {
 public:
  // REQUIRES: slots < 2^31.
  Lru(int64_t num_nodes, uint32_t slots);

  static constexpr uint64_t kSlotBytes =
      Residents::kSlotBytes + 2 * sizeof(uint32_t) + sizeof(uint64_t);

  // As Belady's: the slot of each node, or kMiss; and who enters.
  void Step(std::span<const int64_t> nodes, std::span<int32_t> slots, Changes& changes);
  void Clear();

  // The contents, by slot, as nodes() gives them; the lower its slot, the longer ago a row counts
  // as used. Throws as Belady's, and has changed nothing then.
  void Restore(std::span<const int64_t> nodes);

  std::span<const int64_t> nodes() const { return residents_.nodes(); }

 private:
  static constexpr uint32_t kEnd = 0xFFFFFFFF;

  void Touch(uint32_t slot);
  void Unlink(uint32_t slot);
  void Append(uint32_t slot);

  Residents residents_;
  memory::Buffer<uint32_t> before_, after_;  // by slot: a list from the oldest to the newest
  memory::Buffer<uint64_t> used_;            // by slot: the step of the last use
  uint32_t oldest_ = kEnd, newest_ = kEnd;
  uint64_t step_ = 0;
};

}  // namespace outcrop::cache
