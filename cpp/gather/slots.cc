#include "gather/slots.h"

#include <cstring>

namespace outcrop::gather {

void GatherSlots(const RowArray& cached, std::span<const int32_t> slots, parallel::Pool& pool,
                 std::span<float> out) {
  const auto row = [&](size_t i) {
    return cached.data + static_cast<size_t>(slots[i]) * cached.row_bytes;
  };
  pool.For(slots.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t ahead = i + kRowsAhead;
      if (ahead < end && slots[ahead] >= 0) PrefetchRow(row(ahead), cached.row_bytes);
      if (slots[i] >= 0) DecodeRow(cached, row(i), out.data() + i * cached.dim);
    }
  });
}

void DecodeMisses(const RowArray& stored, std::span<const int32_t> slots, parallel::Pool& pool,
                  std::span<float> out) {
  pool.For(slots.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (slots[i] >= 0) continue;
      DecodeRow(stored, stored.data + i * stored.row_bytes, out.data() + i * stored.dim);
    }
  });
}

void UpdateSlots(const std::byte* source, size_t row_bytes, std::span<const uint32_t> positions,
                 std::span<const uint32_t> slots, parallel::Pool& pool, std::byte* cached) {
  pool.For(slots.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      std::memcpy(cached + slots[i] * row_bytes, source + positions[i] * row_bytes, row_bytes);
    }
  });
}

}  // namespace outcrop::gather
