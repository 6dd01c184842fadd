// Offsets of neighbour lists: node -> where its list begins and ends, plain or compressed.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "memory/buffer.h"

namespace outcrop::cache {

// Entries [begin, end) of the graph's edges.
struct Bounds {
  int64_t begin = 0;
  int64_t end = 0;
};

// Offsets as they are on disk. Thread-safe.
class PlainOffsets {
 public:
  // REQUIRES: `offsets` has an entry at least, and outlives this object.
  explicit PlainOffsets(std::span<const int64_t> offsets) : offsets_(offsets) {}

  int64_t num_nodes() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t num_edges() const { return offsets_.back(); }

  // What At(node) looks at first; then what that leads to.
  void PrefetchFirst(int64_t) const {}
  void PrefetchThen(int64_t node) const { __builtin_prefetch(offsets_.data() + node); }
  // REQUIRES: 0 <= node < num_nodes().
  Bounds At(int64_t node) const {
    const int64_t* offset = offsets_.data() + node;
    return {offset[0], offset[1]};
  }

  // Calls visit(node, bounds) for all nodes, ascending.
  template <typename Visit>
  void ForAll(Visit visit) const {
    for (int64_t node = 0; node < num_nodes(); ++node) visit(node, At(node));
  }

 private:
  std::span<const int64_t> offsets_;
};

// Offsets in about 2.6 bits per node more than the logarithm of the mean degree: 5.8 where that is
// 10, of 64 (Elias-Fano).
//
// Of each of the num_nodes + 1 entries the lowest bits are kept as they are. What is above them
// ascends slowly, and is kept in unary: entry i is the one bit at i + (entry >> low bits). Places
// of some ones are kept, and from there a lookup counts on.
//
// Entries are appended by one thread; once complete, it is thread-safe.
class CompressedOffsets {
 public:
  // REQUIRES: neither is negative.
  CompressedOffsets(int64_t num_nodes, int64_t num_edges);

  // What it holds, from its construction on.
  static uint64_t Bytes(int64_t num_nodes, int64_t num_edges) {
    return memory::Buffer<uint64_t>::FreshBytes(Sizes(num_nodes, num_edges).words());
  }
  uint64_t memory_bytes() const { return memory_.capacity_bytes(); }

  // The next entries of indptr. Throws std::invalid_argument where they do not ascend from 0 to
  // num_edges, or are too many; then the object is of no further use.
  void Append(std::span<const int64_t> entries);
  bool complete() const { return appended_ == sizes_.entries; }

  int64_t num_nodes() const { return static_cast<int64_t>(sizes_.entries) - 1; }
  int64_t num_edges() const { return num_edges_; }

  // What follows as in PlainOffsets. REQUIRES: complete().
  void PrefetchFirst(int64_t node) const {
    const auto entry = static_cast<uint64_t>(node);
    __builtin_prefetch(places_ + entry / kGroup);
    __builtin_prefetch(low_ + entry * sizes_.low_bits / 8);
  }
  void PrefetchThen(int64_t node) const {
    __builtin_prefetch(upper_ + places_[static_cast<uint64_t>(node) / kGroup] / 64);
  }
  Bounds At(int64_t node) const {
    const auto entry = static_cast<uint64_t>(node);
    const uint64_t place = PlaceOf(entry);
    return {Entry(entry, place), Entry(entry + 1, PlaceAfter(entry, place))};
  }

  template <typename Visit>
  void ForAll(Visit visit) const {
    Bounds bounds;
    uint64_t word = 0, ones = upper_[0] & (upper_[0] - 1);  // the first entry is 0
    for (uint64_t entry = 1; entry < sizes_.entries; ++entry) {
      while (ones == 0) ones = upper_[++word];
      bounds = {bounds.end, Entry(entry, 64 * word + LowestOne(ones))};
      ones &= ones - 1;
      visit(static_cast<int64_t>(entry) - 1, bounds);
    }
  }

 private:
  static constexpr uint64_t kGroup = 128;       // entries by which places are kept
  static constexpr uint64_t kBlockBits = 2048;  // upper bits by which entries before them are
  static constexpr uint32_t kMostLowBits = 56;  // with the 7 bits before them they fit into a load
  static constexpr uint64_t kBytes = 0x0101010101010101;
  static constexpr uint64_t kSigns = 0x8080808080808080;

  struct Sizes {
    Sizes(int64_t num_nodes, int64_t num_edges);

    uint64_t entries;
    uint32_t low_bits;
    uint64_t upper_bits;
    uint64_t low_words() const { return entries * low_bits / 64 + 2; }  // loads end beyond the last
    uint64_t upper_words() const { return upper_bits / 64 + 1; }
    uint64_t groups() const { return entries / kGroup + 2; }  // the last ends where the bits end
    uint64_t blocks() const { return upper_bits / kBlockBits + 1; }
    uint64_t words() const { return low_words() + upper_words() + groups() + blocks(); }
  };

  // Of each byte the places of its ones.
  static constexpr auto kOneInByte = [] {
    std::array<std::array<uint8_t, 8>, 256> places{};
    for (size_t byte = 0; byte < places.size(); ++byte) {
      size_t ones = 0;
      for (uint8_t place = 0; place < 8; ++place) {
        if (byte >> place & 1) places[byte][ones++] = place;
      }
    }
    return places;
  }();

  static uint64_t LowestOne(uint64_t word) { return static_cast<uint64_t>(std::countr_zero(word)); }
  // Byte b: how many ones the bytes 0 to b have. By arithmetic, since processors that have an
  // instruction for it are not all that the core is built for.
  static uint64_t OnesByByte(uint64_t word) {
    word -= (word >> 1) & 0x5555555555555555;
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333);
    return ((word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F) * kBytes;
  }
  // The place of the one that has `before` ones before it. REQUIRES: there is one.
  static uint64_t OneAt(uint64_t word, uint64_t ones_by_byte, uint64_t before) {
    const uint64_t passed = ((before * kBytes | kSigns) - ones_by_byte) & kSigns;
    const uint64_t byte = (passed >> 7) * kBytes >> 56;
    before -= (ones_by_byte << 8) >> (8 * byte) & 0xFF;
    return 8 * byte + kOneInByte[word >> (8 * byte) & 0xFF][before];
  }

  int64_t Entry(uint64_t entry, uint64_t place) const {
    const uint64_t bit = entry * sizes_.low_bits;
    uint64_t low;
    std::memcpy(&low, low_ + bit / 8, sizeof(low));
    low = low >> (bit % 8) & low_mask_;
    return static_cast<int64_t>((place - entry) << sizes_.low_bits | low);
  }

  uint64_t PlaceOf(uint64_t entry) const {
    uint64_t from = places_[entry / kGroup], before = entry % kGroup;
    if (places_[entry / kGroup + 1] - from > kBlockBits) SkipBlocks(entry, &from, &before);
    uint64_t word = from / 64;
    uint64_t ones = upper_[word] & ~uint64_t{0} << from % 64;
    for (;;) {
      const uint64_t by_byte = OnesByByte(ones);
      if (before < by_byte >> 56) return 64 * word + OneAt(ones, by_byte, before);
      before -= by_byte >> 56;
      ones = upper_[++word];
    }
  }
  // The place of the entry after one at `place`; mostly in the same word.
  uint64_t PlaceAfter(uint64_t entry, uint64_t place) const {
    const uint64_t after = upper_[place / 64] & ~uint64_t{1} << place % 64;
    return after != 0 ? place / 64 * 64 + LowestOne(after) : PlaceOf(entry + 1);
  }
  // A group with long lists has many zeros: the search goes on from the last block whose first bit
  // has no more than `entry` entries before it.
  void SkipBlocks(uint64_t entry, uint64_t* from, uint64_t* before) const;

  void Check(int64_t entry) const;
  void AppendEntry(uint64_t entry);

  // Constant after construction
  const Sizes sizes_;
  const int64_t num_edges_;
  const uint64_t low_mask_;
  memory::Buffer<uint64_t> memory_;
  unsigned char* low_;
  uint64_t* upper_;
  uint64_t* places_;  // of the first entry of each group
  uint64_t* blocks_;  // entries before each block of upper bits

  // While entries are appended
  uint64_t appended_ = 0, blocks_begun_ = 0;
  int64_t last_ = 0;
};

}  // namespace outcrop::cache
