#include "sample/draw.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace outcrop::sample {

uint64_t HopKey(const BatchKey& key, uint32_t hop) {
  const uint64_t item = key.epoch | uint64_t{key.batch} << 32;
  return random::Low64(random::Draw(key.seed, random::Purpose::kHop, item, hop << 8 | key.stream));
}

void Drawer::Draw(uint64_t hop_key, uint64_t node, uint32_t root, uint64_t degree, Replace replace,
                  std::span<int64_t> out) {
  hop_key_ = hop_key;
  node_ = node;
  root_ = root;
  constexpr size_t kMostByScan = 48;  // beyond it, looking through what is chosen costs more
  if (replace == Replace::kYes) {
    WithReplacement(degree, out);
  } else if (out.size() == degree) {
    std::iota(out.begin(), out.end(), 0);
  } else if (out.size() <= kMostByScan) {
    Floyd(degree, out);
  } else {
    FloydHashed(degree, out);
  }
}

// Floyd's choice of k of n: for j = n - k ... n - 1 take a t of [0, j], or j if t is taken.
// `out` is kept sorted, so one pass from its end finds both t and its place.
void Drawer::Floyd(uint64_t degree, std::span<int64_t> out) {
  const size_t count = out.size();
  for (size_t i = 0; i < count; ++i) {
    const uint64_t j = degree - count + i;
    const auto t = static_cast<int64_t>(random::Below(Bits(static_cast<uint32_t>(i)), j + 1));
    size_t at = i;
    while (at > 0 && out[at - 1] > t) --at;
    if (at > 0 && out[at - 1] == t) {
      out[i] = static_cast<int64_t>(j);  // larger than all that is chosen
    } else {
      std::copy_backward(out.begin() + static_cast<ptrdiff_t>(at),
                         out.begin() + static_cast<ptrdiff_t>(i),
                         out.begin() + static_cast<ptrdiff_t>(i) + 1);
      out[at] = t;
    }
  }
}

void Drawer::FloydHashed(uint64_t degree, std::span<int64_t> out) {
  const size_t count = out.size();
  const size_t slots = std::bit_ceil(count * 2);
  const int shift = 64 - std::countr_zero(slots);  // the top bits spread consecutive positions
  chosen_.assign(slots, -1);
  const auto insert = [&](int64_t position) {
    size_t slot = (static_cast<size_t>(position) * 0x9E3779B97F4A7C15) >> shift;
    for (; chosen_[slot] >= 0; slot = (slot + 1) & (slots - 1)) {
      if (chosen_[slot] == position) return false;
    }
    chosen_[slot] = position;
    return true;
  };
  for (size_t i = 0; i < count; ++i) {
    const uint64_t j = degree - count + i;
    out[i] = static_cast<int64_t>(random::Below(Bits(static_cast<uint32_t>(i)), j + 1));
    if (!insert(out[i])) {
      out[i] = static_cast<int64_t>(j);
      insert(out[i]);
    }
  }
  std::sort(out.begin(), out.end());
}

void Drawer::WithReplacement(uint64_t degree, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<int64_t>(random::Below(Bits(static_cast<uint32_t>(i)), degree));
  }
  std::sort(out.begin(), out.end());
}

}  // namespace outcrop::sample
