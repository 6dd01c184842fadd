#include "disk/memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "disk/align.h"
#include "disk/file.h"

namespace outcrop::disk {
namespace {

constexpr uint64_t kHugePageBytes = 2 << 20;

// All memory of this process by its address. Locked over a fork, so that the child can go on.
struct Registry {
  struct Entry {
    uint64_t bytes;
    bool kept;  // from children
  };

  Registry() {
    pthread_atfork([] { All().mutex.lock(); }, [] { All().mutex.unlock(); },
                   [] {
                     All().entries.clear();  // the parent's
                     All().mutex.unlock();
                   });
  }
  static Registry& All() {
    static auto* const all = new Registry;  // never destroyed: memory may be freed at exit
    return *all;
  }

  // REQUIRES of both: mutex is held.
  std::map<uintptr_t, Entry>::iterator Find(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    auto found = entries.upper_bound(at);
    if (found == entries.begin()) return entries.end();
    --found;
    return at - found->first < found->second.bytes ? found : entries.end();
  }

  std::mutex mutex;
  // Guarded by mutex
  std::map<uintptr_t, Entry> entries;
};

}  // namespace

AlignedMemory::AlignedMemory(uint64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // A fault per 2 MiB instead of one per 4 KiB; all of it is charged, so none is wasted. Where the
  // kernel has no huge pages it stays as it is.
  if (bytes >= kHugePageBytes) madvise(memory, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
  Keep();
}

AlignedMemory::~AlignedMemory() {
  // In a forked child it is not there, and something else may be at its address.
  if (data_ == nullptr || !home_.Here()) return;
  Registry& all = Registry::All();
  const std::lock_guard lock(all.mutex);
  all.entries.erase(reinterpret_cast<uintptr_t>(data_));
  munmap(data_, bytes_);
}

void AlignedMemory::Keep() {
  Registry& all = Registry::All();
  const std::lock_guard lock(all.mutex);
  const bool kept = madvise(data_, bytes_, MADV_DONTFORK) == 0;
  all.entries[reinterpret_cast<uintptr_t>(data_)] = {bytes_, kept};
}

void AlignedMemory::Give(const void* address) {
  Registry& all = Registry::All();
  const std::lock_guard lock(all.mutex);
  const auto found = all.Find(address);
  if (found == all.entries.end()) return;
  found->second.kept = false;
  madvise(reinterpret_cast<void*>(found->first), found->second.bytes, MADV_DOFORK);
}

bool AlignedMemory::Keeps(const void* address) {
  Registry& all = Registry::All();
  const std::lock_guard lock(all.mutex);
  const auto found = all.Find(address);
  return found != all.entries.end() && found->second.kept;
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      home_(other.home_) {}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(home_, other.home_);
  return *this;
}

void AlignedMemory::Resize(uint64_t bytes) {
#ifdef __SANITIZE_THREAD__  // which does not follow mremap, and would see races that are none
  *this = AlignedMemory(bytes);
#else
  {
    Registry& all = Registry::All();
    const std::lock_guard lock(all.mutex);
    void* memory = mremap(data_, bytes_, bytes, MREMAP_MAYMOVE);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    all.entries.erase(reinterpret_cast<uintptr_t>(data_));
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
  }
  Keep();
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
