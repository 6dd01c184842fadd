// Decode: rows as they are stored -> float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace outcrop::rows {

// Each takes rows one after the other and fills `out`, dim values a row.
void DecodeFloat16(std::span<const uint16_t> rows, std::span<float> out);
void DecodeBfloat16(std::span<const uint16_t> rows, std::span<float> out);

// A stored row is its scale (float32, little-endian) and dim int8 values; the value is their
// product. REQUIRES: rows.size() is a multiple of dim + 4.
void DecodeInt8(std::span<const std::byte> rows, size_t dim, std::span<float> out);

}  // namespace outcrop::rows
