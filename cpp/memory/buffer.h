// A growable array whose memory is exactly what it says: from mmap, never from malloc.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace outcrop::memory {

// Like std::vector of plain values, but new elements are not initialised, growth moves no bytes
// (mremap), and freed memory goes back to the system at once.
template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  ~Buffer() { Free(); }
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  uint64_t capacity_bytes() const { return capacity_ * sizeof(T); }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  operator std::span<T>() { return {data_, size_}; }
  operator std::span<const T>() const { return {data_, size_}; }
  std::span<const T> Slice(size_t begin, size_t end) const { return {data_ + begin, end - begin}; }

  // What an empty buffer takes once it is resized to so many elements.
  static uint64_t FreshBytes(size_t size) {
    const size_t bytes = std::max(size * sizeof(T), kLeastBytes);
    return (bytes + 4095) / 4096 * 4096;
  }

  void clear() { size_ = 0; }

  void resize(size_t size) {
    if (size > capacity_) Grow(size);
    size_ = size;
  }

  void push_back(T value) {
    resize(size_ + 1);
    data_[size_ - 1] = value;
  }

 private:
  void Grow(size_t least) {
    const size_t bytes = FreshBytes(std::max(least, capacity_ + capacity_ / 2));
    void* memory = data_ == nullptr ? Map(bytes) : Remap(bytes);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
    mapped_bytes_ = bytes;
    capacity_ = bytes / sizeof(T);
  }

  static void* Map(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // Large arrays are read at random, and most of that would be the search for their pages.
    if (memory != MAP_FAILED && bytes >= kLargeBytes) madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
  }

  void* Remap(size_t bytes) {
#ifdef __SANITIZE_THREAD__  // which does not follow mremap, and would see races that are none
    void* memory = Map(bytes);
    if (memory != MAP_FAILED) {
      std::memcpy(memory, data_, mapped_bytes_);
      munmap(data_, mapped_bytes_);
    }
    return memory;
#else
    return mremap(data_, mapped_bytes_, bytes, MREMAP_MAYMOVE);
#endif
  }

  static constexpr size_t kLeastBytes = 64 << 10;
  static constexpr size_t kLargeBytes = 4 << 20;

  void Free() {
    if (data_ != nullptr) munmap(data_, mapped_bytes_);
  }

  void Swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }

  T* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0, mapped_bytes_ = 0;
};

}  // namespace outcrop::memory
