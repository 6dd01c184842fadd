// Guarded map: a mapped file whose bytes are copied by the kernel, so that a bad page is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "disk/file.h"
#include "threads/home.h"

namespace outcrop::disk {

// A load from a mapped page that cannot be had (the file was truncated, the drive failed) ends the
// process by SIGBUS. The kernel itself may try: here it copies from the map into a page of memory
// that is a file, many ranges by one call, and says where it stopped. That costs a third of what a
// read(2) of each range does, and pages are kept and read as those of any map. Thread-safe; belongs
// to the process that made it.
class GuardedMap {
 public:
  struct Range {
    uint64_t offset = 0;
    uint64_t length = 0;
    uint64_t end() const { return offset + length; }
  };
  // What one Copy takes.
  static constexpr size_t kMostRanges = 128;
  static constexpr size_t kMostBytes = kPageBytes;
  // Pages that are kept for the next Copy, each with a descriptor, since the kernel writes to a
  // file for one thread at a time. One is made when more threads copy at once than there are pages:
  // open descriptors may grow to this many late in a run. Of threads that wait for a drive there
  // may be more, for whom making one is quick.
  static constexpr size_t kKeptPages = 8;

  // Maps the file for access at random: pages come when they are wanted, and none ahead of them.
  explicit GuardedMap(std::shared_ptr<const File> file);  // throws IoError
  ~GuardedMap();
  GuardedMap(const GuardedMap&) = delete;
  GuardedMap& operator=(const GuardedMap&) = delete;

  const File& file() const { return *file_; }

  // The bytes of all ranges, one after the other -> out. Throws IoError, and threads::Forked,
  // since a child shares the memory that is copied to. REQUIRES: their lengths add up to
  // out.size(); no more than the constants above allow.
  void Copy(std::span<const Range> ranges, std::span<std::byte> out);

  // To be called after some copies, whose bytes are good if this returns: throws IoError where the
  // file is shorter than it was, since its last page then reads as zeros from there on.
  void CheckSize() const;

 private:
  class Page;

  std::unique_ptr<Page> TakePage();
  void ReturnPage(std::unique_ptr<Page> page);
  void CheckRange(const Range& range) const;

  // Constant after construction
  const std::shared_ptr<const File> file_;
  const uint64_t bytes_;
  const std::byte* data_ = nullptr;

  const threads::Home home_;

  std::mutex mutex_;
  // Guarded by mutex_
  std::vector<std::unique_ptr<Page>> free_;
};

}  // namespace outcrop::disk
