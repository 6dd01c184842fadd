#include "rows/decode.h"

#include <bit>
#include <cstring>

namespace outcrop::rows {
namespace {

float FromHalf(uint16_t half) {
  // Shift exponent and fraction into place and let a multiplication fix the bias: it also brings
  // subnormal numbers out right. Infinities and NaNs keep their full exponent.
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(half & 0x7FFF) << 13;
  constexpr float kRebias = 0x1p112F;
  if (rest >= uint32_t{0x7C00} << 13) return std::bit_cast<float>(sign | 0x7F800000 | rest);
  const float magnitude = std::bit_cast<float>(rest) * kRebias;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

}  // namespace

void DecodeFloat16(std::span<const uint16_t> rows, std::span<float> out) {
  for (size_t i = 0; i < rows.size(); ++i) out[i] = FromHalf(rows[i]);
}

void DecodeBfloat16(std::span<const uint16_t> rows, std::span<float> out) {
  for (size_t i = 0; i < rows.size(); ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(rows[i]) << 16);
  }
}

void DecodeInt8(std::span<const std::byte> rows, size_t dim, std::span<float> out) {
  const size_t row_bytes = dim + sizeof(float);
  const size_t count = rows.size() / row_bytes;
  for (size_t row = 0; row < count; ++row) {
    const std::byte* stored = rows.data() + row * row_bytes;
    float scale = 0;
    std::memcpy(&scale, stored, sizeof scale);
    const auto* values = reinterpret_cast<const int8_t*>(stored + sizeof scale);
    float* decoded = out.data() + row * dim;
    for (size_t d = 0; d < dim; ++d) decoded[d] = scale * static_cast<float>(values[d]);
  }
}

}  // namespace outcrop::rows
