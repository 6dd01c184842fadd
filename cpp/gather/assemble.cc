#include "gather/assemble.h"

#include <algorithm>
#include <cstring>

namespace outcrop::gather {

void PlaceRows(const RowArray& rows, std::span<const uint32_t> sources,
               std::span<const uint32_t> places, parallel::Pool& pool, std::span<float> out) {
  const auto row = [&](size_t i) { return rows.data + size_t{sources[i]} * rows.row_bytes; };
  pool.For(sources.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kRowsAhead < end) PrefetchRow(row(i + kRowsAhead), rows.row_bytes);
      DecodeRow(rows, row(i), out.data() + size_t{places[i]} * rows.dim);
    }
  });
}

void PlaceRowsAt(const RowArray& shape, std::span<const std::byte> data,
                 std::span<const int64_t> offsets, std::span<const uint32_t> places,
                 parallel::Pool& pool, std::span<float> out) {
  pool.For(offsets.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      DecodeRow(shape, data.data() + offsets[i], out.data() + size_t{places[i]} * shape.dim);
    }
  });
}

RowStream::RowStream(const RowArray& shape, std::span<const uint32_t> places, std::span<float> out)
    : shape_(shape), places_(places), out_(out) {
  begun_.reserve(shape.row_bytes);
}

void RowStream::Feed(std::span<const std::byte> block, parallel::Pool& pool) {
  const auto place = [this](size_t i) { return out_.data() + size_t{places_[i]} * shape_.dim; };
  if (!begun_.empty() && !done()) {
    const size_t missing = std::min(shape_.row_bytes - begun_.size(), block.size());
    begun_.insert(begun_.end(), block.begin(), block.begin() + static_cast<ptrdiff_t>(missing));
    block = block.subspan(missing);
    if (begun_.size() < shape_.row_bytes) return;
    DecodeRow(shape_, begun_.data(), place(next_++));
    begun_.clear();
  }
  const size_t whole = std::min(block.size() / shape_.row_bytes, places_.size() - next_);
  pool.For(whole, kRowGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      DecodeRow(shape_, block.data() + i * shape_.row_bytes, place(next_ + i));
    }
  });
  next_ += whole;
  if (done()) return;
  block = block.subspan(whole * shape_.row_bytes);
  begun_.assign(block.begin(), block.end());
}

void CopyRows(std::span<const uint32_t> from, std::span<const uint32_t> to, size_t dim,
              std::span<float> out) {
  for (size_t i = 0; i < from.size(); ++i) {
    std::memcpy(out.data() + to[i] * dim, out.data() + from[i] * dim, dim * sizeof(float));
  }
}

}  // namespace outcrop::gather
