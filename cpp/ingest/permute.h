// Permute: rows and where each goes -> those that go into one range of rows.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace outcrop::ingest {

// Row i -> row places[i] - first of `out`, for places in [first, first + rows of out).
// REQUIRES: rows.size() == places.size() * row_bytes; out.size() is a multiple of row_bytes.
template <typename Place>
void ScatterRows(std::span<const std::byte> rows, std::span<const Place> places, Place first,
                 size_t row_bytes, std::span<std::byte> out) {
  const size_t count = out.size() / row_bytes;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto to = static_cast<size_t>(places[i] - first);  // one before `first` is large
    if (to < count) {
      std::memcpy(out.data() + to * row_bytes, rows.data() + i * row_bytes, row_bytes);
    }
  }
}

}  // namespace outcrop::ingest
