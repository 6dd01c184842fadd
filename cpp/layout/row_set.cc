#include "layout/row_set.h"

#include <bit>

namespace outcrop::layout {

void RowSet::Add(std::span<const int64_t> rows) {
  for (const int64_t row : rows) {
    words_[static_cast<uint64_t>(row) / 64] |= uint64_t{1} << static_cast<uint64_t>(row) % 64;
  }
}

uint64_t RowSet::Masked(uint64_t at, uint64_t first, uint64_t last) const {
  uint64_t word = words_[at];
  if (at == first / 64) word &= ~uint64_t{0} << first % 64;
  if (at == last / 64) word &= (uint64_t{1} << last % 64) - 1;
  return word;
}

uint64_t RowSet::Count(uint64_t first, uint64_t last) const {
  uint64_t count = 0;
  for (uint64_t at = first / 64; at * 64 < last; ++at) {
    count += static_cast<uint64_t>(std::popcount(Masked(at, first, last)));
  }
  return count;
}

void RowSet::List(uint64_t first, uint64_t last, std::span<int64_t> out) const {
  size_t found = 0;
  for (uint64_t at = first / 64; at * 64 < last; ++at) {
    for (uint64_t word = Masked(at, first, last); word != 0; word &= word - 1) {
      out[found++] = static_cast<int64_t>(at * 64) + std::countr_zero(word);
    }
  }
}

}  // namespace outcrop::layout
