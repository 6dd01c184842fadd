// Row set: which rows are wanted, a bit each, counted and listed range by range.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace outcrop::layout {

// Not thread-safe.
class RowSet {
 public:
  explicit RowSet(uint64_t rows) : rows_(rows), words_((rows + 63) / 64) {}

  static uint64_t Bytes(uint64_t rows) { return (rows + 63) / 64 * 8; }
  uint64_t rows() const { return rows_; }

  // REQUIRES: each is below rows().
  void Add(std::span<const int64_t> rows);

  // How many there are in [first, last). REQUIRES: first <= last <= rows().
  uint64_t Count(uint64_t first, uint64_t last) const;

  // Those in [first, last), ascending. REQUIRES: out.size() == Count(first, last).
  void List(uint64_t first, uint64_t last, std::span<int64_t> out) const;

 private:
  // The bits of word `at` that are in [first, last).
  uint64_t Masked(uint64_t at, uint64_t first, uint64_t last) const;

  const uint64_t rows_;
  std::vector<uint64_t> words_;
};

}  // namespace outcrop::layout
