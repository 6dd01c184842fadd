#include "memory/slabs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "disk/align.h"
#include "disk/file.h"

namespace outcrop::memory {

Slab::~Slab() {
  if (!pool_) return;  // moved from
  if (home_.Here()) {
    pool_->Return(std::move(memory_));
    return;
  }
  // In a forked child a thread that is gone may have the pool's lock, or wait for it.
  [[maybe_unused]] const auto* abandoned = new auto(std::move(pool_));
}

uint64_t SlabPool::ChargedBytes(uint64_t bytes) {
  const uint64_t step = std::max<uint64_t>(std::bit_floor(bytes) / 8, disk::kPageBytes);
  return disk::RoundUp(std::max<uint64_t>(bytes, 1), step);
}

std::vector<Slab> SlabPool::Take(std::span<const uint64_t> sizes, std::chrono::milliseconds wait,
                                 Beyond beyond) {
  uint64_t wanted = 0;
  for (uint64_t size : sizes) wanted += ChargedBytes(size);
  std::vector<Slab> slabs;
  std::unique_lock lock(mutex_);
  const auto fits = [&] { return held_bytes_ + wanted <= limit_bytes_; };
  if (beyond == Beyond::kNo && !returned_.wait_for(lock, wait, fits)) return slabs;
  // What is kept is used first; only then may the rest of it make room for new slabs.
  std::vector<disk::AlignedMemory> taken(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) taken[i] = TakeKept(ChargedBytes(sizes[i]));
  DropKept(wanted);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (taken[i].size() == 0) taken[i] = disk::AlignedMemory(ChargedBytes(sizes[i]));
  }
  // Charged only now: the system may have refused. What was taken is then gone, not leaked.
  held_bytes_ += wanted;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  slabs.reserve(sizes.size());
  for (disk::AlignedMemory& memory : taken) {
    slabs.emplace_back(shared_from_this(), std::move(memory));
  }
  return slabs;
}

disk::AlignedMemory SlabPool::TakeKept(uint64_t bytes) {
  auto found = kept_.lower_bound(bytes);
  if (found == kept_.end() || found->first > bytes + bytes / 4) {
    if (found == kept_.begin() || (--found)->first < bytes - bytes / 4) return {};
  }
  disk::AlignedMemory memory = std::move(found->second);
  kept_.erase(found);
  kept_bytes_ -= memory.size();
  memory.Keep();  // whoever had it last may have given it to children
  if (memory.size() != bytes) memory.Resize(bytes);
  return memory;
}

void SlabPool::DropKept(uint64_t wanted) {
  while (!kept_.empty() && held_bytes_ + wanted + kept_bytes_ > limit_bytes_) {
    const auto largest = std::prev(kept_.end());
    kept_bytes_ -= largest->first;
    kept_.erase(largest);
  }
}

void SlabPool::Return(disk::AlignedMemory memory) {
  if (memory.size() == 0) return;  // moved from
  const uint64_t bytes = memory.size();
  {
    std::lock_guard lock(mutex_);
    held_bytes_ -= bytes;
    if (held_bytes_ + kept_bytes_ + bytes <= limit_bytes_) {
      kept_bytes_ += bytes;
      kept_.emplace(bytes, std::move(memory));
    }
  }
  returned_.notify_all();
}

uint64_t SlabPool::held_bytes() const {
  std::lock_guard lock(mutex_);
  return held_bytes_;
}

uint64_t SlabPool::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}

}  // namespace outcrop::memory
