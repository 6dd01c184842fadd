// Lookahead: node id -> which of the next batches wants it.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "cache/node_bytes.h"

namespace outcrop::cache {

// A bit for each of a few batches that are to come, each in a place of a ring. Not thread-safe.
class Lookahead {
 public:
  static constexpr uint32_t kPlaces = 8;

  // For `kept` nodes that are kept, out of num_nodes.
  Lookahead(int64_t num_nodes, int64_t kept) : wanted_(num_nodes, kept) {}

  // Whether it never takes one node for another.
  bool exact() const { return wanted_.exact(); }

  void Prefetch(int64_t node) const { wanted_.Prefetch(node); }

  // A place for a batch that comes after all others; none: it is not free yet.
  std::optional<uint32_t> Open() {
    const uint32_t place = next_ % kPlaces;
    if (open_ & 1u << place) return std::nullopt;
    open_ |= 1u << place;
    marks_[place] = 0;
    ++next_;
    return place;
  }

  // The batch wants the node -> whether no other did.
  bool Add(int64_t node, uint32_t place) {
    uint8_t& bits = wanted_[node];
    const uint8_t before = bits;
    bits |= static_cast<uint8_t>(1u << place);
    marks_[place] += bits != before;
    return before == 0;
  }

  // The batch has it now.
  void Remove(int64_t node, uint32_t place) {
    uint8_t& bits = wanted_[node];
    marks_[place] -= bits >> place & 1u;
    bits &= static_cast<uint8_t>(~(1u << place));
  }

  // The batch wants nothing any more: takes long where not all was removed.
  void Close(uint32_t place) {
    const auto others = static_cast<uint8_t>(~(1u << place));
    if (marks_[place] > 0) {
      for (uint8_t& bits : wanted_.all()) bits &= others;
    }
    open_ &= others;
  }

  // How many places after the oldest one the batch is that wants the node soonest; kPlaces: nobody
  // does.
  uint32_t Wait(int64_t node) const {
    const uint8_t bits = std::rotr(wanted_[node], static_cast<int>(next_ % kPlaces));
    return static_cast<uint32_t>(std::countr_zero(bits));
  }

  // The place of that batch; none: nobody wants it.
  std::optional<uint32_t> Soonest(int64_t node) const {
    const uint32_t wait = Wait(node);
    if (wait == kPlaces) return std::nullopt;
    return (next_ + wait) % kPlaces;
  }

  // The places by age: 0 of the batch that comes last.
  uint32_t Latest(uint32_t age) const { return (next_ - 1 - age) % kPlaces; }

 private:
  static_assert(kPlaces == 8, "a byte of bits");

  NodeBytes wanted_;
  uint32_t next_ = 0;             // the number of the next batch
  uint8_t open_ = 0;              // a bit for each place
  int64_t marks_[kPlaces] = {0};  // how many bytes have the place's bit
};

}  // namespace outcrop::cache
