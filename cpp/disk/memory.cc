#include "disk/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "disk/align.h"
#include "disk/file.h"

namespace outcrop::disk {
namespace {

constexpr uint64_t kHugePageBytes = 2 << 20;

}  // namespace

AlignedMemory::AlignedMemory(uint64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // A fault per 2 MiB instead of one per 4 KiB; all of it is charged, so none is wasted. Where the
  // kernel has no huge pages it stays as it is.
  if (bytes >= kHugePageBytes) madvise(memory, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void AlignedMemory::Resize(uint64_t bytes) {
#ifdef __SANITIZE_THREAD__  // which does not follow mremap, and would see races that are none
  *this = AlignedMemory(bytes);
#else
  void* memory = mremap(data_, bytes_, bytes, MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
#endif
}

Arena::Arena(uint64_t bytes)
    : memory_(RoundUp(bytes, kPageBytes)), used_(memory_.size() / kPageBytes, false) {}

std::byte* Arena::Allocate(uint64_t bytes) {
  const size_t pages = RoundUp(bytes, kPageBytes) / kPageBytes;
  // Next fit: requests complete roughly in the order in which they were sent, so the pages just
  // after the last ones handed out are the likeliest to be free.
  size_t at = next_, run = 0;
  for (size_t looked = 0; looked < used_.size() + pages; ++looked, ++at) {
    if (at >= used_.size()) {
      at = 0;
      run = 0;
    }
    run = used_[at] ? 0 : run + 1;
    if (run == pages) {
      const size_t first = at + 1 - pages;
      for (size_t page = first; page <= at; ++page) used_[page] = true;
      next_ = at + 1;
      return memory_.data() + first * kPageBytes;
    }
  }
  return nullptr;
}

void Arena::Free(std::byte* memory, uint64_t bytes) {
  const size_t first = static_cast<size_t>(memory - memory_.data()) / kPageBytes;
  const size_t pages = RoundUp(bytes, kPageBytes) / kPageBytes;
  for (size_t page = first; page < first + pages; ++page) used_[page] = false;
}

}  // namespace outcrop::disk
