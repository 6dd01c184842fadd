#include "cache/offsets.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace outcrop::cache {

CompressedOffsets::Sizes::Sizes(int64_t num_nodes, int64_t num_edges)
    : entries(static_cast<uint64_t>(num_nodes) + 1) {
  const uint64_t mean = num_nodes == 0 ? 0 : static_cast<uint64_t>(num_edges / num_nodes);
  low_bits = mean == 0 ? 0 : static_cast<uint32_t>(std::bit_width(mean)) - 1;
  low_bits = std::min(low_bits, kMostLowBits);
  upper_bits = entries + (static_cast<uint64_t>(num_edges) >> low_bits);
}

CompressedOffsets::CompressedOffsets(int64_t num_nodes, int64_t num_edges)
    : sizes_(num_nodes, num_edges),
      num_edges_(num_edges),
      low_mask_((uint64_t{1} << sizes_.low_bits) - 1) {
  memory_.resize(sizes_.words());
  std::fill_n(memory_.data(), memory_.size(), 0);
  uint64_t* words = memory_.data();
  low_ = reinterpret_cast<unsigned char*>(words);
  upper_ = words + sizes_.low_words();
  places_ = upper_ + sizes_.upper_words();
  blocks_ = places_ + sizes_.groups();
}

void CompressedOffsets::Append(std::span<const int64_t> entries) {
  if (entries.size() > sizes_.entries - appended_) {
    throw std::invalid_argument("has more than " + std::to_string(sizes_.entries) + " entries");
  }
  for (const int64_t entry : entries) {
    Check(entry);
    AppendEntry(static_cast<uint64_t>(entry));
    last_ = entry;
  }
  if (complete()) places_[(appended_ + kGroup - 1) / kGroup] = sizes_.upper_bits;
}

void CompressedOffsets::Check(int64_t entry) const {
  if (appended_ == 0 && entry != 0) {
    throw std::invalid_argument("begins at edge " + std::to_string(entry));
  }
  if (entry < last_) {
    throw std::invalid_argument("node " + std::to_string(appended_ - 1) +
                                ": its list begins at edge " + std::to_string(last_) +
                                " and ends at " + std::to_string(entry));
  }
  const bool is_last = appended_ + 1 == sizes_.entries;
  if (entry > num_edges_ || (is_last && entry < num_edges_)) {
    throw std::invalid_argument((is_last ? "ends at edge " : "goes to edge ") +
                                std::to_string(entry) + ", but there are " +
                                std::to_string(num_edges_) + " edges");
  }
}

void CompressedOffsets::AppendEntry(uint64_t entry) {
  const uint64_t bit = appended_ * sizes_.low_bits;
  uint64_t low;
  std::memcpy(&low, low_ + bit / 8, sizeof(low));
  low |= (entry & low_mask_) << bit % 8;
  std::memcpy(low_ + bit / 8, &low, sizeof(low));
  const uint64_t place = appended_ + (entry >> sizes_.low_bits);
  upper_[place / 64] |= uint64_t{1} << place % 64;
  if (appended_ % kGroup == 0) places_[appended_ / kGroup] = place;
  while (blocks_begun_ * kBlockBits <= place) blocks_[blocks_begun_++] = appended_;
  ++appended_;
}

void CompressedOffsets::SkipBlocks(uint64_t entry, uint64_t* from, uint64_t* before) const {
  const uint64_t* first = blocks_ + *from / kBlockBits + 1;
  const uint64_t* last = blocks_ + (places_[entry / kGroup + 1] - 1) / kBlockBits + 1;
  const uint64_t* after = std::upper_bound(first, last, entry);
  if (after == first) return;
  *from = static_cast<uint64_t>(after - 1 - blocks_) * kBlockBits;
  *before = entry - after[-1];
}

}  // namespace outcrop::cache
