#include "gather/rows.h"

#include <cstring>

#include "gather/decode.h"

namespace outcrop::gather {

void DecodeRow(const RowArray& rows, const std::byte* stored, float* out) {
  const std::span<float> decoded(out, rows.dim);
  switch (rows.encoding) {
    case Encoding::kFloat32:
      std::memcpy(out, stored, rows.row_bytes);
      return;
    case Encoding::kFloat16:
      return DecodeFloat16({reinterpret_cast<const uint16_t*>(stored), rows.dim}, decoded);
    case Encoding::kBfloat16:
      return DecodeBfloat16({reinterpret_cast<const uint16_t*>(stored), rows.dim}, decoded);
    case Encoding::kInt8:
      return DecodeInt8({stored, rows.row_bytes}, rows.dim, decoded);
  }
}

void PrefetchRow(const std::byte* row, size_t row_bytes) {
  // The hardware follows a row by itself once it has been begun.
  constexpr size_t kPrefetchBytes = 256;
  for (size_t at = 0; at < row_bytes && at < kPrefetchBytes; at += 64) {
    __builtin_prefetch(row + at);
  }
}

void GatherRows(const RowArray& rows, std::span<const int64_t> ids, std::span<const int64_t> places,
                parallel::Pool& pool, std::span<float> out) {
  const auto row = [&](size_t i) {
    return rows.data + static_cast<size_t>(ids[i]) * rows.row_bytes;
  };
  pool.For(ids.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kRowsAhead < end) PrefetchRow(row(i + kRowsAhead), rows.row_bytes);
      const size_t place = places.empty() ? i : static_cast<size_t>(places[i]);
      DecodeRow(rows, row(i), out.data() + place * rows.dim);
    }
  });
}

}  // namespace outcrop::gather
