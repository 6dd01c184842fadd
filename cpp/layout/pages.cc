#include "layout/pages.h"

#include <array>
#include <bit>
#include <cstring>

namespace outcrop::layout {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                   kPrime3 = 0x165667B19E3779F9, kPrime4 = 0x85EBCA77C2B2AE63;

uint64_t Round(uint64_t sum, uint64_t word) {
  return std::rotl(sum + word * kPrime2, 31) * kPrime1;
}

}  // namespace

uint64_t PageChecksum(std::span<const std::byte> page, uint64_t seed) {
  std::array<uint64_t, 4> sums{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  static_assert(disk::kPageBytes % sizeof(sums) == 0, "of pages there is no rest to be hashed");
  for (size_t at = 0; at < page.size(); at += sizeof(sums)) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), page.data() + at, sizeof(words));
    for (size_t i = 0; i < 4; ++i) sums[i] = Round(sums[i], words[i]);
  }
  uint64_t hash = std::rotl(sums[0], 1) + std::rotl(sums[1], 7) + std::rotl(sums[2], 12) +
                  std::rotl(sums[3], 18);
  for (const uint64_t sum : sums) hash = (hash ^ Round(0, sum)) * kPrime1 + kPrime4;
  hash += page.size();
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

uint64_t SumOfPages(std::span<const std::byte> bytes, std::span<const int64_t> firsts,
                    std::span<const int64_t> counts) {
  uint64_t sum = 0;
  size_t at = 0;
  for (size_t run = 0; run < firsts.size(); ++run) {
    for (int64_t i = 0; i < counts[run]; ++i, at += disk::kPageBytes) {
      sum +=
          PageChecksum(bytes.subspan(at, disk::kPageBytes), static_cast<uint64_t>(firsts[run] + i));
    }
  }
  return sum;
}

void ChecksumPages(std::span<const std::byte> bytes, uint64_t first, std::span<uint64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = PageChecksum(bytes.subspan(i * disk::kPageBytes, disk::kPageBytes), first + i);
  }
}

}  // namespace outcrop::layout
