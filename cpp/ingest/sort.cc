#include "ingest/sort.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

namespace outcrop::ingest {
namespace {

// 11 bits: 2048 counters of 8 bytes stay in the L1 cache.
constexpr int kDigitBits = 11;
constexpr size_t kBuckets = size_t{1} << kDigitBits;
constexpr uint64_t kDigitMask = kBuckets - 1;

template <typename Record, typename Field>
uint64_t LargestKey(std::span<const Record> records, Field field) {
  uint64_t all = 0;
  for (const Record& record : records) all |= record.*field;
  return all;
}

// One stable pass by the digit that begins at bit `shift`.
template <typename Record, typename Field>
void Scatter(std::span<const Record> from, std::span<Record> to, Field field, int shift) {
  std::array<size_t, kBuckets> place{};
  for (const Record& record : from) ++place[(record.*field >> shift) & kDigitMask];
  size_t sum = 0;
  for (size_t& p : place) sum += std::exchange(p, sum);
  for (const Record& record : from) to[place[(record.*field >> shift) & kDigitMask]++] = record;
}

}  // namespace

template <typename Record>
Sorted Sort(std::span<Record> records, std::span<Record> scratch, Order order) {
  const size_t count = records.size();
  std::span<Record> from = records, to = scratch.first(count);
  const auto sort_by = [&](auto field) {
    const auto bits =
        static_cast<int>(std::bit_width(LargestKey(std::span<const Record>(from), field)));
    for (int shift = 0; shift < bits; shift += kDigitBits) {
      Scatter(std::span<const Record>(from), to, field, shift);
      std::swap(from, to);
    }
  };
  if (order == Order::kTargetSource) sort_by(&Record::source);
  sort_by(&Record::target);
  Sorted sorted{count, from.data() != records.data()};
  if (order == Order::kTargetSource) {
    const auto end = std::unique(from.begin(), from.end(), SameEdge<Record>);
    sorted.records = static_cast<size_t>(end - from.begin());
  }
  return sorted;
}

template Sorted Sort(std::span<Edge<uint32_t>>, std::span<Edge<uint32_t>>, Order);
template Sorted Sort(std::span<Edge<uint64_t>>, std::span<Edge<uint64_t>>, Order);
template Sorted Sort(std::span<NumberedEdge<uint32_t>>, std::span<NumberedEdge<uint32_t>>, Order);
template Sorted Sort(std::span<NumberedEdge<uint64_t>>, std::span<NumberedEdge<uint64_t>>, Order);

}  // namespace outcrop::ingest
