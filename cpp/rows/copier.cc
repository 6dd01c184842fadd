#include "rows/copier.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "rows/decode.h"

namespace outcrop::rows {

// Rows that a thread takes at a time.
static constexpr size_t kRowGrain = 256;

void PrefetchRow(const std::byte* row, size_t row_bytes) {
  // The hardware follows a row by itself once it has been begun.
  constexpr size_t kPrefetchBytes = 256;
  for (size_t at = 0; at < row_bytes && at < kPrefetchBytes; at += 64) {
    __builtin_prefetch(row + at);
  }
}

void DecodeRow(const RowFormat& format, const std::byte* stored, float* out) {
  const std::span<float> decoded(out, format.dim);
  switch (format.encoding) {
    case Encoding::kFloat32:
      std::memcpy(out, stored, format.row_bytes);
      return;
    case Encoding::kFloat16:
      return DecodeFloat16({reinterpret_cast<const uint16_t*>(stored), format.dim}, decoded);
    case Encoding::kBfloat16:
      return DecodeBfloat16({reinterpret_cast<const uint16_t*>(stored), format.dim}, decoded);
    case Encoding::kInt8:
      return DecodeInt8({stored, format.row_bytes}, format.dim, decoded);
  }
}

template <typename Slot, typename Row>
void Copier::Gather(const std::byte* rows, std::span<const Slot> slots, std::span<const Row> places,
                    std::span<float> out) {
  const auto row = [&](size_t i) {
    return rows + static_cast<size_t>(slots[i]) * format_.row_bytes;
  };
  const auto here = [&](size_t i) {
    if constexpr (std::is_signed_v<Slot>) return slots[i] >= 0;
    return true;
  };
  pool_.For(slots.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t ahead = i + kRowsAhead;
      if (ahead < end && here(ahead)) PrefetchRow(row(ahead), format_.row_bytes);
      if (!here(i)) continue;
      const size_t place = places.empty() ? i : static_cast<size_t>(places[i]);
      DecodeRow(format_, row(i), out.data() + place * format_.dim);
    }
  });
}

#define OUTCROP_PLACE(Slot, Row)                                                              \
  template void Copier::Gather(const std::byte*, std::span<const Slot>, std::span<const Row>, \
                               std::span<float>);
OUTCROP_PLACE(int32_t, int64_t)
OUTCROP_PLACE(int32_t, uint32_t)
OUTCROP_PLACE(int64_t, int64_t)
OUTCROP_PLACE(int64_t, uint32_t)
OUTCROP_PLACE(uint32_t, int64_t)
OUTCROP_PLACE(uint32_t, uint32_t)
#undef OUTCROP_PLACE

void Copier::GatherAt(std::span<const std::byte> data, std::span<const int64_t> offsets,
                      std::span<const uint32_t> places, std::span<float> out) {
  pool_.For(offsets.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      DecodeRow(format_, data.data() + offsets[i], out.data() + size_t{places[i]} * format_.dim);
    }
  });
}

void Copier::Update(const std::byte* source, std::span<const uint32_t> positions,
                    std::span<const uint32_t> slots, std::byte* rows) {
  const size_t row_bytes = format_.row_bytes;
  pool_.For(slots.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      std::memcpy(rows + slots[i] * row_bytes, source + positions[i] * row_bytes, row_bytes);
    }
  });
}

void Copier::Copy(std::span<const uint32_t> from, std::span<const uint32_t> to,
                  std::span<float> out) const {
  const size_t dim = format_.dim;
  for (size_t i = 0; i < from.size(); ++i) {
    std::memcpy(out.data() + to[i] * dim, out.data() + from[i] * dim, dim * sizeof(float));
  }
}

RowStream::RowStream(Copier& copier, std::span<const uint32_t> places, std::span<float> out)
    : copier_(copier), places_(places), out_(out) {
  begun_.reserve(copier.format().row_bytes);
}

void RowStream::Feed(std::span<const std::byte> block) {
  const RowFormat& format = copier_.format();
  const auto place = [&](size_t i) { return out_.data() + size_t{places_[i]} * format.dim; };
  if (!begun_.empty() && !done()) {
    const size_t missing = std::min(format.row_bytes - begun_.size(), block.size());
    begun_.insert(begun_.end(), block.begin(), block.begin() + static_cast<ptrdiff_t>(missing));
    block = block.subspan(missing);
    if (begun_.size() < format.row_bytes) return;
    DecodeRow(format, begun_.data(), place(next_++));
    begun_.clear();
  }
  const size_t whole = std::min(block.size() / format.row_bytes, places_.size() - next_);
  copier_.pool().For(whole, kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      DecodeRow(format, block.data() + i * format.row_bytes, place(next_ + i));
    }
  });
  next_ += whole;
  if (done()) return;
  block = block.subspan(whole * format.row_bytes);
  begun_.assign(block.begin(), block.end());
}

}  // namespace outcrop::rows
