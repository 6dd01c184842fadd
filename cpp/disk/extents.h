// Extents: which bytes of a file belong where in memory. Rows of a row file are one kind of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace outcrop::disk {

struct Extent {
  uint64_t offset;
  uint64_t length;
  std::byte* memory;

  uint64_t end() const { return offset + length; }
};

// A list of extents in ascending order of offset, computed on demand: a batch of 400,000 rows
// needs no 400,000 structures. A view: the caller keeps ids, places and memory alive.
class ExtentList {
 public:
  // Row ids[i] of a file whose rows of row_bytes begin at `base` goes to memory row places[i], or
  // to memory row i where `places` is empty.
  // REQUIRES: ids ascending (equal ones allowed), not negative; places empty or as many as ids.
  static ExtentList Rows(uint64_t base, uint64_t row_bytes, std::span<const int64_t> ids,
                         std::span<const int64_t> places, std::byte* memory);

  // Bytes [offsets[i], offsets[i] + lengths[i]) go to memory + places[i], in any order.
  // REQUIRES: three spans of one size, no negative value.
  static ExtentList Ranges(std::span<const int64_t> offsets, std::span<const int64_t> lengths,
                           std::span<const int64_t> places, std::byte* memory);

  size_t size() const { return size_; }

  Extent operator[](size_t i) const {
    if (row_bytes_ != 0) {
      const uint64_t place = second_.empty() ? i : static_cast<uint64_t>(second_[i]);
      return {base_ + static_cast<uint64_t>(first_[i]) * row_bytes_, row_bytes_,
              memory_ + place * row_bytes_};
    }
    const size_t k = order_.empty() ? i : order_[i];
    return {static_cast<uint64_t>(first_[k]), static_cast<uint64_t>(second_[k]),
            memory_ + third_[k]};
  }

  // Sum of the lengths, and one past the last byte wanted.
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t end() const { return end_; }

  // Whether any two extents share bytes of the file: fine to read, an error to write.
  bool Overlaps() const;

 private:
  ExtentList() = default;

  std::span<const int64_t> first_;   // rows: ids;    ranges: offsets
  std::span<const int64_t> second_;  // rows: places; ranges: lengths
  std::span<const int64_t> third_;   // ranges: places
  std::vector<size_t> order_;        // ranges: ascending order of offset; empty if already so
  std::byte* memory_ = nullptr;
  uint64_t base_ = 0;
  uint64_t row_bytes_ = 0;  // 0: ranges
  size_t size_ = 0;
  uint64_t total_bytes_ = 0;
  uint64_t end_ = 0;
};

}  // namespace outcrop::disk
