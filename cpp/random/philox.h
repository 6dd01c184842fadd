// Philox4x32-10: the counter-based generator behind every random choice in Outcrop.
//
// A draw is a pure function of (key, counter), so it does not depend on the order in which work
// happens to run (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace outcrop::random {

using Block = std::array<uint32_t, 4>;

// What a stream of draws is for. The values are part of the format: never renumber them.
enum class Purpose : uint32_t {
  kRmatEdge = 1,
  kCommunityEdge = 2,
  kFeature = 3,
  kCentroid = 4,
  kLabel = 5,
  kRelabel = 6,
  kSplit = 7,
  kExpand = 8,
  kSeedOrder = 9,
  kHop = 10,
  kPartTie = 11,
};

// 128 random bits for a 64-bit key and a 128-bit counter.
inline Block Philox(uint64_t key, Block counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// Draw number `draw` for `item` of a purpose.
inline Block Draw(uint64_t seed, Purpose purpose, uint64_t item, uint32_t draw = 0) {
  return Philox(seed, {static_cast<uint32_t>(item), static_cast<uint32_t>(item >> 32), draw,
                       static_cast<uint32_t>(purpose)});
}

inline uint64_t Low64(const Block& block) { return block[0] | uint64_t{block[1]} << 32; }
inline uint64_t High64(const Block& block) { return block[2] | uint64_t{block[3]} << 32; }

// A number below `bound` from 64 random bits; the bias is below bound / 2^64.
inline uint64_t Below(uint64_t bits, uint64_t bound) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * bound) >> 64);
}

}  // namespace outcrop::random
