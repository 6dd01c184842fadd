// Node bits: which of some neighbouring nodes are in a set.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace outcrop::cache {

// Of kNodes nodes: 48 bytes, so that a cache line has them and 16 bytes of numbers to find others
// by.
struct NodeBits {
  static constexpr uint64_t kNodes = 384;

  std::array<uint64_t, kNodes / 64> words{};

  // How many of these a graph has.
  static uint64_t Blocks(int64_t num_nodes) {
    return (static_cast<uint64_t>(num_nodes) + kNodes - 1) / kNodes;
  }
  static uint64_t BlockOf(int64_t node) { return static_cast<uint64_t>(node) / kNodes; }
  static uint64_t BitOf(int64_t node) { return static_cast<uint64_t>(node) % kNodes; }

  // REQUIRES of all: bit < kNodes.
  bool Has(uint64_t bit) const { return (words[bit / 64] >> (bit % 64) & 1) != 0; }
  void Add(uint64_t bit) { words[bit / 64] |= uint64_t{1} << (bit % 64); }
  // How many nodes before `bit` are in the set.
  uint64_t Rank(uint64_t bit) const {
    uint64_t rank = 0;
    for (uint64_t word = 0; word < bit / 64; ++word) rank += Ones(words[word]);
    return rank + RankInWord(bit);
  }
  // The same, without those of the words before its own.
  uint64_t RankInWord(uint64_t bit) const {
    return Ones(words[bit / 64] & ((uint64_t{1} << (bit % 64)) - 1));
  }
  uint64_t Count() const {
    uint64_t count = 0;
    for (uint64_t word : words) count += Ones(word);
    return count;
  }

  // visit(bit) for each that is in the set, ascending.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (uint64_t word = 0; word < words.size(); ++word) {
      for (uint64_t bits = words[word]; bits != 0; bits &= bits - 1) {
        visit(64 * word + static_cast<uint64_t>(std::countr_zero(bits)));
      }
    }
  }

  static uint64_t Ones(uint64_t word) { return static_cast<uint64_t>(std::popcount(word)); }
};
static_assert(sizeof(NodeBits) == 48);

}  // namespace outcrop::cache
