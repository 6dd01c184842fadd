// Scatter: rows of a partition of the features -> pieces of many chunks at once.
//
// A chunk is a run of rows, cut into pieces of one size by its bytes, wherever rows end. Rows are
// appended to many chunks in turns; each has the piece that it is at in a slot of memory. A piece
// that is full is given away, to be written, and its slot comes back afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace outcrop::layout {

struct Piece {
  size_t chunk = 0;
  size_t number = 0;  // within its chunk
  size_t slot = 0;
  size_t bytes = 0;
};

// Rows that come next: of chunk `chunk`, the next `count` ids.
struct Run {
  size_t chunk = 0;
  size_t count = 0;
};

// Not thread-safe.
class Scatter {
 public:
  // `memory` has the slots, one after the other.
  // REQUIRES: at least one slot; row_bytes, piece_bytes > 0.
  Scatter(size_t chunks, size_t row_bytes, size_t piece_bytes, std::span<std::byte> memory);

  // Appends rows to chunks until all are appended (true), or a slot is needed and none is free
  // (false): call it again with the same arguments then, after Release.
  // REQUIRES: ids are rows of the partition, which begins with row `first_row`; runs name as many.
  bool Append(std::span<const std::byte> partition, int64_t first_row, std::span<const Run> runs,
              std::span<const int64_t> ids);

  // Full pieces since the last call. They are the caller's until Release(slot).
  std::vector<Piece> TakeFull();
  // What is left of a chunk, padded with zeros to a multiple of `unit` and given away as a piece;
  // of no bytes where there is nothing.
  Piece Finish(size_t chunk, size_t unit);
  void Release(size_t slot) { free_.push_back(slot); }

  // The chunk goes on at the beginning of piece `number`, which begins `skip` bytes into the row
  // that is appended next. REQUIRES: nothing was appended to it; skip < row_bytes.
  void Resume(size_t chunk, size_t number, size_t skip);

  std::span<std::byte> slot(size_t number) const {
    return memory_.subspan(number * piece_bytes_, piece_bytes_);
  }

 private:
  static constexpr size_t kNoSlot = ~size_t{0};
  struct Chunk {
    size_t slot = kNoSlot;
    size_t filled = 0;
    size_t pieces = 0;  // given away
    size_t skip = 0;    // bytes of the next row that are in an earlier piece
  };

  // Appends the row from byte *done on; false where it needs a slot that is not there.
  bool AppendRow(Chunk& chunk, size_t number, const std::byte* row, size_t* done);

  // Constant after construction
  const size_t row_bytes_, piece_bytes_;
  const std::span<std::byte> memory_;

  std::vector<Chunk> chunks_;
  std::vector<size_t> free_;
  std::vector<Piece> full_;
  // Where an Append that was interrupted goes on
  size_t run_ = 0, row_in_run_ = 0, id_ = 0, byte_ = 0;
};

}  // namespace outcrop::layout
