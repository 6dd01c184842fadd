// Prefetched: rows that come with the reads of others, since whole pages are read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "disk/align.h"

namespace outcrop::cache {

// Where rows are in their file, and how it is read.
struct RowLayout {
  uint64_t base_bytes = 0;  // where row 0 begins
  uint64_t row_bytes = 0;
  uint64_t unit_bytes = 1;  // reads begin and end at multiples of this, a power of two
  uint64_t gap_bytes = 0;   // reads with no more than this between them are one
};

// body(node), ascending, for every node whose row is wholly in what is read for the rows of
// `nodes`, these included, until it returns false. REQUIRES: nodes ascending; row_bytes > 0.
template <typename Body>
void ForReadWith(std::span<const int64_t> nodes, int64_t num_nodes, const RowLayout& layout,
                 const Body& body) {
  const auto [base, row, unit, gap] = layout;
  for (size_t i = 0; i < nodes.size();) {
    const uint64_t first = base + static_cast<uint64_t>(nodes[i]) * row;
    const uint64_t begin = std::max(disk::RoundDown(first, unit), base);
    uint64_t end = disk::RoundUp(first + row, unit);
    for (++i; i < nodes.size(); ++i) {
      const uint64_t next = base + static_cast<uint64_t>(nodes[i]) * row;
      if (disk::RoundDown(next, unit) > end + gap) break;
      end = disk::RoundUp(next + row, unit);
    }
    const auto last = std::min(static_cast<int64_t>((end - base) / row), num_nodes);
    for (auto node = static_cast<int64_t>((begin - base + row - 1) / row); node < last; ++node) {
      if (!body(node)) return;
    }
  }
}

}  // namespace outcrop::cache
