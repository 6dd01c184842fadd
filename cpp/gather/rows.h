// Gather: rows of an array that can be addressed (in memory or memory-mapped) -> float32 rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/pool.h"

namespace outcrop::gather {

// How a row is stored; docs/format.md has the bytes.
enum class Encoding { kFloat32, kFloat16, kBfloat16, kInt8 };

struct RowArray {
  const std::byte* data = nullptr;
  size_t row_bytes = 0;
  size_t dim = 0;
  Encoding encoding = Encoding::kFloat32;
};

// Rows that a thread takes at a time, and rows whose memory is asked for before they are copied.
inline constexpr size_t kRowGrain = 256;
inline constexpr size_t kRowsAhead = 8;

// One row as it is stored -> rows.dim values.
void DecodeRow(const RowArray& rows, const std::byte* stored, float* out);
void PrefetchRow(const std::byte* row, size_t row_bytes);

// Row ids[i], decoded -> out[places[i] * dim ...]; without places -> out[i * dim ...]. REQUIRES:
// ids are within the array, places within out; one for each id, or none at all.
void GatherRows(const RowArray& rows, std::span<const int64_t> ids, std::span<const int64_t> places,
                parallel::Pool& pool, std::span<float> out);

}  // namespace outcrop::gather
