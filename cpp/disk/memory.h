// Page-aligned memory, and the arena of bounce buffers that each worker owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "threads/home.h"

namespace outcrop::disk {

// Zeroed anonymous memory from mmap: page-aligned, and returned to the system when freed (malloc
// would keep it).
//
// A drive may write into it at any time, around the page cache. A fork at that moment would leave
// the drive's page to the child, and the parent with a copy without what was read (open(2)). So it
// is not there in forked children, unless it was given to them; and only into such memory are reads
// sent straight.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(uint64_t bytes);  // throws std::bad_alloc
  ~AlignedMemory();
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  // To another size, with the pages that it has and with any contents: fresh pages cost more. Kept
  // from children. REQUIRES: neither size is 0; throws std::bad_alloc
  void Resize(uint64_t bytes);

  // Children that are forked from now on have none of it.
  void Keep();
  // Children that are forked from now on have a copy of all the memory that this address is in, if
  // it is memory of this kind. REQUIRES: nothing is being read into it.
  static void Give(const void* address);
  // Whether an address is in memory of this kind that was not given to children.
  static bool Keeps(const void* address);

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  threads::Home home_;
};

// Hands out runs of pages from one piece of memory. Not thread-safe: one per worker.
class Arena {
 public:
  explicit Arena(uint64_t bytes);  // rounded up to whole pages

  // Null where no run of free pages is long enough; some later Free will make room.
  std::byte* Allocate(uint64_t bytes);
  void Free(std::byte* memory, uint64_t bytes);

  const AlignedMemory& memory() const { return memory_; }

 private:
  AlignedMemory memory_;
  std::vector<bool> used_;  // per page
  size_t next_ = 0;         // where the search for a free run begins
};

}  // namespace outcrop::disk
