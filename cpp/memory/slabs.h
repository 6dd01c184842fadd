// Slabs: the memory of batches, within one limit, charged for as long as anyone holds it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "disk/memory.h"
#include "threads/home.h"

namespace outcrop::memory {

class SlabPool;

// A piece of page-aligned memory; goes back to its pool when destroyed.
class Slab {
 public:
  Slab(std::shared_ptr<SlabPool> pool, disk::AlignedMemory memory)
      : pool_(std::move(pool)), memory_(std::move(memory)) {}
  ~Slab();
  Slab(Slab&&) = default;
  Slab& operator=(Slab&&) = delete;

  std::byte* data() const { return memory_.data(); }

 private:
  threads::Home home_;
  std::shared_ptr<SlabPool> pool_;
  disk::AlignedMemory memory_;
};

// Whether more may be taken than the limit allows.
enum class Beyond { kNo, kYes };

// Thread-safe. Freed slabs are kept for reuse, since fresh pages cost more than reading into them;
// nothing is kept while that and what is held would exceed the limit together.
class SlabPool : public std::enable_shared_from_this<SlabPool> {
 public:
  explicit SlabPool(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // One slab per size, all at once or none at all: empty if they did not fit within `wait`. Beyond
  // the limit they always fit, at once.
  std::vector<Slab> Take(std::span<const uint64_t> sizes, std::chrono::milliseconds wait,
                         Beyond beyond = Beyond::kNo);

  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t held_bytes() const;
  uint64_t peak_bytes() const;

  // What a slab of this many bytes is charged: sizes are rounded up by at most 1/8, so that
  // batches of nearly one size can use each other's slabs as they are.
  static uint64_t ChargedBytes(uint64_t bytes);

 private:
  friend class Slab;

  void Return(disk::AlignedMemory memory);
  // REQUIRES: mutex_ is held, in both.
  disk::AlignedMemory TakeKept(uint64_t bytes);  // empty where none is of about this size
  void DropKept(uint64_t wanted);                // makes room for so many bytes

  const uint64_t limit_bytes_;

  mutable std::mutex mutex_;
  std::condition_variable returned_;
  // Guarded by mutex_
  uint64_t held_bytes_ = 0, kept_bytes_ = 0, peak_bytes_ = 0;
  std::multimap<uint64_t, disk::AlignedMemory> kept_;  // by size
};

}  // namespace outcrop::memory
