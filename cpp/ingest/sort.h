// Sort: edge records in memory -> a sorted run.
#pragma once

#include <cstddef>
#include <span>

#include "ingest/edge.h"

namespace outcrop::ingest {

struct Sorted {
  size_t records = 0;       // that are left: fewer than given where multi-edges were merged
  bool in_scratch = false;  // the result lies in `scratch`, not in `records`
};

// Stable radix sort; linear in the number of records. With Order::kTargetSource only the first of
// equal edges is kept. REQUIRES: scratch.size() >= records.size().
template <typename Record>
Sorted Sort(std::span<Record> records, std::span<Record> scratch, Order order);

}  // namespace outcrop::ingest
