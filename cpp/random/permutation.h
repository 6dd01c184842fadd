// A random permutation of [0, size) in O(1) memory.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "random/philox.h"

namespace outcrop::random {

// A keyed Feistel network over the next power of two, walked until it lands inside [0, size):
// fewer than two steps on average. Six rounds do for large sizes; where a few items must come in
// every order equally often, it takes more. Thread-safe: constant after construction.
template <uint32_t kRounds = 6>
class Permutation {
  static_assert(kRounds % 2 == 0);

 public:
  Permutation(uint64_t size, uint64_t seed, Purpose purpose) : size_(size) {
    const int bits = size > 1 ? static_cast<int>(std::bit_width(size - 1)) : 1;
    low_bits_ = bits / 2;
    high_bits_ = bits - low_bits_;
    for (uint32_t round = 0; round < kRounds; ++round) {
      keys_[round] = Low64(Draw(seed, purpose, size, round)) | 1;
    }
  }

  // REQUIRES: item < size.
  uint64_t operator()(uint64_t item) const {
    do {
      item = Encrypt(item);
    } while (item >= size_);
    return item;
  }

  // The item that is mapped to `image`. REQUIRES: image < size.
  uint64_t Inverse(uint64_t image) const {
    do {
      image = Decrypt(image);
    } while (image >= size_);
    return image;
  }

 private:
  static uint64_t Mix(uint64_t value, uint64_t key) {
    value = (value + key) * 0x9E3779B97F4A7C15;
    value ^= value >> 32;
    return (value * key) >> 32;
  }

  uint64_t Encrypt(uint64_t item) const {
    const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1;
    const uint64_t high_mask = (uint64_t{1} << high_bits_) - 1;
    uint64_t low = item & low_mask, high = item >> low_bits_;
    for (uint32_t round = 0; round < kRounds; round += 2) {
      low ^= Mix(high, keys_[round]) & low_mask;
      high ^= Mix(low, keys_[round + 1]) & high_mask;
    }
    return high << low_bits_ | low;
  }

  uint64_t Decrypt(uint64_t item) const {
    const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1;
    const uint64_t high_mask = (uint64_t{1} << high_bits_) - 1;
    uint64_t low = item & low_mask, high = item >> low_bits_;
    for (uint32_t round = kRounds; round > 0; round -= 2) {
      high ^= Mix(low, keys_[round - 1]) & high_mask;
      low ^= Mix(high, keys_[round - 2]) & low_mask;
    }
    return high << low_bits_ | low;
  }

  uint64_t size_;
  int low_bits_ = 0, high_bits_ = 0;
  std::array<uint64_t, kRounds> keys_{};
};

}  // namespace outcrop::random
