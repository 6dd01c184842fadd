#include "disk/extents.h"

#include <algorithm>
#include <numeric>

namespace outcrop::disk {

ExtentList ExtentList::Rows(uint64_t base, uint64_t row_bytes, std::span<const int64_t> ids,
                            std::span<const int64_t> places, std::byte* memory) {
  ExtentList list;
  list.first_ = ids;
  list.second_ = places;
  list.memory_ = memory;
  list.base_ = base;
  list.row_bytes_ = row_bytes;
  list.size_ = ids.size();
  list.total_bytes_ = ids.size() * row_bytes;
  if (!ids.empty()) list.end_ = list[ids.size() - 1].end();
  return list;
}

ExtentList ExtentList::Ranges(std::span<const int64_t> offsets, std::span<const int64_t> lengths,
                              std::span<const int64_t> places, std::byte* memory) {
  ExtentList list;
  list.first_ = offsets;
  list.second_ = lengths;
  list.third_ = places;
  list.memory_ = memory;
  list.size_ = offsets.size();
  if (!std::is_sorted(offsets.begin(), offsets.end())) {
    list.order_.resize(offsets.size());
    std::iota(list.order_.begin(), list.order_.end(), size_t{0});
    std::stable_sort(list.order_.begin(), list.order_.end(),
                     [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
  }
  for (size_t i = 0; i < offsets.size(); ++i) {
    list.total_bytes_ += static_cast<uint64_t>(lengths[i]);
    if (lengths[i] == 0) continue;
    list.end_ = std::max(list.end_, static_cast<uint64_t>(offsets[i] + lengths[i]));
  }
  return list;
}

bool ExtentList::Overlaps() const {
  uint64_t end = 0;
  for (size_t i = 0; i < size_; ++i) {
    const Extent extent = (*this)[i];
    if (extent.length == 0) continue;
    if (extent.offset < end) return true;
    end = extent.end();
  }
  return false;
}

}  // namespace outcrop::disk
