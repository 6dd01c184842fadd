// Assemble: cached rows and the rows of a packed chunk -> rows of a batch, decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gather/rows.h"
#include "parallel/pool.h"

namespace outcrop::gather {

// Row sources[i] of the array -> out row places[i], decoded.
// REQUIRES: sources are within the array and places within `out`; no place twice.
void PlaceRows(const RowArray& rows, std::span<const uint32_t> sources,
               std::span<const uint32_t> places, parallel::Pool& pool, std::span<float> out);

// The row that begins at byte offsets[i] of `data` -> out row places[i], decoded. `shape.data` is
// not used. REQUIRES: whole rows within the data, places within `out`; no place twice.
void PlaceRowsAt(const RowArray& shape, std::span<const std::byte> data,
                 std::span<const int64_t> offsets, std::span<const uint32_t> places,
                 parallel::Pool& pool, std::span<float> out);

// Rows that arrive as bytes, block after block, wherever rows end -> out row places[0], places[1]
// ... Not thread-safe.
class RowStream {
 public:
  // `shape.data` is not used. REQUIRES: places within `out`, none twice; both outlive this.
  RowStream(const RowArray& shape, std::span<const uint32_t> places, std::span<float> out);

  // Bytes after the last row are ignored.
  void Feed(std::span<const std::byte> block, parallel::Pool& pool);
  bool done() const { return next_ == places_.size(); }

 private:
  const RowArray shape_;
  const std::span<const uint32_t> places_;
  const std::span<float> out_;
  size_t next_ = 0;               // the row that comes next
  std::vector<std::byte> begun_;  // the bytes of it that came with the last block
};

// Out row from[i] -> out row to[i]. REQUIRES: all within `out`, of `dim` values a row.
void CopyRows(std::span<const uint32_t> from, std::span<const uint32_t> to, size_t dim,
              std::span<float> out);

}  // namespace outcrop::gather
