#include "layout/scatter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "disk/align.h"
#include "rows/copier.h"

namespace outcrop::layout {

Scatter::Scatter(size_t chunks, size_t row_bytes, size_t piece_bytes, std::span<std::byte> memory)
    : row_bytes_(row_bytes), piece_bytes_(piece_bytes), memory_(memory), chunks_(chunks) {
  for (size_t slot = memory.size() / piece_bytes; slot-- > 0;) free_.push_back(slot);
}

bool Scatter::Append(std::span<const std::byte> partition, int64_t first_row,
                     std::span<const Run> runs, std::span<const int64_t> ids) {
  const auto row = [&](size_t i) {
    return partition.data() + static_cast<size_t>(ids[i] - first_row) * row_bytes_;
  };
  for (; run_ < runs.size(); ++run_, row_in_run_ = 0) {
    Chunk& chunk = chunks_[runs[run_].chunk];
    for (; row_in_run_ < runs[run_].count; ++row_in_run_, ++id_) {
      if (id_ + rows::kRowsAhead < ids.size()) {
        rows::PrefetchRow(row(id_ + rows::kRowsAhead), row_bytes_);
      }
      if (!AppendRow(chunk, runs[run_].chunk, row(id_), &byte_)) return false;
      byte_ = 0;
    }
  }
  run_ = row_in_run_ = id_ = 0;
  return true;
}

bool Scatter::AppendRow(Chunk& chunk, size_t number, const std::byte* row, size_t* done) {
  if (chunk.skip > 0) *done = std::exchange(chunk.skip, 0);
  while (*done < row_bytes_) {
    if (chunk.slot == kNoSlot) {
      if (free_.empty()) return false;
      chunk.slot = free_.back();
      free_.pop_back();
    }
    const size_t bytes = std::min(row_bytes_ - *done, piece_bytes_ - chunk.filled);
    std::memcpy(slot(chunk.slot).data() + chunk.filled, row + *done, bytes);
    chunk.filled += bytes;
    *done += bytes;
    if (chunk.filled == piece_bytes_) {
      full_.push_back({number, chunk.pieces++, chunk.slot, piece_bytes_});
      chunk.slot = kNoSlot;
      chunk.filled = 0;
    }
  }
  return true;
}

std::vector<Piece> Scatter::TakeFull() { return std::exchange(full_, {}); }

Piece Scatter::Finish(size_t number, size_t unit) {
  Chunk& chunk = chunks_[number];
  if (chunk.slot == kNoSlot) return {number, chunk.pieces, 0, 0};
  const size_t bytes = std::min<size_t>(disk::RoundUp(chunk.filled, unit), piece_bytes_);
  std::memset(slot(chunk.slot).data() + chunk.filled, 0, bytes - chunk.filled);
  const Piece piece{number, chunk.pieces++, chunk.slot, bytes};
  chunk.slot = kNoSlot;
  chunk.filled = 0;
  return piece;
}

void Scatter::Resume(size_t number, size_t piece, size_t skip) {
  chunks_[number].pieces = piece;
  chunks_[number].skip = skip;
}

}  // namespace outcrop::layout
