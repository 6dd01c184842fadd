// Page-aligned memory, and the arena of bounce buffers that each worker owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace outcrop::disk {

// Zeroed anonymous memory from mmap: page-aligned, and returned to the system when freed (malloc
// would keep it).
class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(uint64_t bytes);  // throws std::bad_alloc
  ~AlignedMemory();
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  // To another size, with the pages that it has and with any contents: fresh pages cost more.
  void Resize(uint64_t bytes);  // REQUIRES: neither size is 0; throws std::bad_alloc

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
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
