// Rounding to a power of two.
#pragma once

#include <cstdint>

namespace outcrop::disk {

// REQUIRES: unit is a power of two.
constexpr uint64_t RoundDown(uint64_t value, uint64_t unit) { return value & ~(unit - 1); }
constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return RoundDown(value + unit - 1, unit);
}
constexpr bool IsPowerOfTwo(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

inline bool IsAligned(const void* memory, uint64_t unit) {
  return (reinterpret_cast<uintptr_t>(memory) & (unit - 1)) == 0;
}

}  // namespace outcrop::disk
