// Copier: rows as they are stored, from wherever they are -> float32 rows of a batch; and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "threads/pool.h"

namespace outcrop::rows {

// How a row is stored; docs/format.md has the bytes.
enum class Encoding { kFloat32, kFloat16, kBfloat16, kInt8 };

struct RowFormat {
  size_t row_bytes = 0;
  size_t dim = 0;
  Encoding encoding = Encoding::kFloat32;
};

// Rows whose memory is asked for before they are copied.
inline constexpr size_t kRowsAhead = 8;
void PrefetchRow(const std::byte* row, size_t row_bytes);

// One row as it is stored -> format.dim values.
void DecodeRow(const RowFormat& format, const std::byte* stored, float* out);

// Rows of one format, copied by threads of its own. Not thread-safe, apart from Cancel.
class Copier {
 public:
  Copier(const RowFormat& format, uint32_t threads) : format_(format), pool_(threads) {}

  // Row slots[i] of `rows`, decoded -> row places[i] of `out`; without places -> row i. A slot
  // below zero is left alone. REQUIRES: slots within rows, places within out; one for each slot, or
  // none.
  template <typename Slot, typename Row>
  void Gather(const std::byte* rows, std::span<const Slot> slots, std::span<const Row> places,
              std::span<float> out);

  // The row that begins at byte offsets[i] of `data`, decoded -> row places[i] of `out`.
  // REQUIRES: whole rows within the data, places within `out`; no place twice.
  void GatherAt(std::span<const std::byte> data, std::span<const int64_t> offsets,
                std::span<const uint32_t> places, std::span<float> out);

  // Row positions[i] of `source` -> row slots[i] of `rows`, as it is. REQUIRES: slots differ.
  void Update(const std::byte* source, std::span<const uint32_t> positions,
              std::span<const uint32_t> slots, std::byte* rows);

  // Row from[i] of `out` -> row to[i] of `out`.
  void Copy(std::span<const uint32_t> from, std::span<const uint32_t> to,
            std::span<float> out) const;

  // What is under way, and every later call, throws Cancelled. From any thread.
  void Cancel() { pool_.Cancel(); }

  const RowFormat& format() const { return format_; }
  threads::Pool& pool() { return pool_; }

 private:
  const RowFormat format_;
  threads::Pool pool_;
};

// Rows that arrive as bytes, block after block, wherever rows end -> rows places[0], places[1] ...
// of `out`. Not thread-safe.
class RowStream {
 public:
  // REQUIRES: places within `out`, none twice; all three outlive this.
  RowStream(Copier& copier, std::span<const uint32_t> places, std::span<float> out);

  // Bytes after the last row are ignored.
  void Feed(std::span<const std::byte> block);
  bool done() const { return next_ == places_.size(); }

 private:
  Copier& copier_;
  const std::span<const uint32_t> places_;
  const std::span<float> out_;
  size_t next_ = 0;               // the row that comes next
  std::vector<std::byte> begun_;  // the bytes of it that came with the last block
};

}  // namespace outcrop::rows
