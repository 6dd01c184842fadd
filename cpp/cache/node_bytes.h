// Node bytes: node id -> a byte of a policy's own, one for each node where there are not too many.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "memory/buffer.h"

namespace outcrop::cache {

// All 0 at first. Of a graph much larger than what is kept of it, several nodes share a byte: good
// enough for guesses. Not thread-safe.
class NodeBytes {
 public:
  // For `kept` nodes that are kept, out of num_nodes.
  NodeBytes(int64_t num_nodes, int64_t kept) {
    const size_t entries = Entries(num_nodes, kept);
    bytes_.resize(entries);
    std::memset(bytes_.data(), 0, entries);
    shift_ = entries == static_cast<size_t>(num_nodes) ? 0 : 64 - std::countr_zero(entries);
  }

  // Whether no node shares its byte with others.
  bool exact() const { return shift_ == 0; }

  static uint64_t Bytes(int64_t num_nodes, int64_t kept) { return Entries(num_nodes, kept); }

  void Prefetch(int64_t node) const { __builtin_prefetch(&bytes_[Entry(node)]); }
  uint8_t& operator[](int64_t node) { return bytes_[Entry(node)]; }
  uint8_t operator[](int64_t node) const { return bytes_[Entry(node)]; }
  std::span<uint8_t> all() { return bytes_; }

 private:
  static constexpr int64_t kEntries = 16;  // per node that is kept: enough to tell nodes apart

  static size_t Entries(int64_t num_nodes, int64_t kept) {
    const size_t wanted = std::bit_ceil(static_cast<size_t>(kept * kEntries));
    const auto nodes = static_cast<size_t>(num_nodes);
    return nodes <= 2 * wanted ? nodes : wanted;
  }

  size_t Entry(int64_t node) const {
    if (shift_ == 0) return static_cast<size_t>(node);
    return static_cast<size_t>((static_cast<uint64_t>(node) * 0x9E3779B97F4A7C15) >> shift_);
  }

  memory::Buffer<uint8_t> bytes_;
  int shift_ = 0;  // 0: one for each node
};

}  // namespace outcrop::cache
