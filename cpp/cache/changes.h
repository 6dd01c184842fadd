// Changes: what a batch finds in a cache, and what it leaves there.
#pragma once

#include <cstdint>
#include <span>

#include "memory/buffer.h"

namespace outcrop::cache {

// A row that is in no slot.
inline constexpr int32_t kMiss = -1;

// One batch's changes: rows at `positions` enter `slots` once the whole batch has been gathered.
struct Changes {
  memory::Buffer<uint32_t> positions;
  memory::Buffer<uint32_t> slots;

  void Clear() {
    positions.clear();
    slots.clear();
  }
  void Add(size_t position, uint32_t slot) {
    positions.push_back(static_cast<uint32_t>(position));
    slots.push_back(slot);
  }
};

}  // namespace outcrop::cache
