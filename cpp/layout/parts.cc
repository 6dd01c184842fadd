#include "layout/parts.h"

#include <algorithm>
#include <limits>
#include <string>

namespace outcrop::layout {

template <typename Index>
ListStream::Taken PartCounts<Index>::Add(std::span<const int64_t> offsets,
                                         std::span<const Index> entries) {
  return stream_.Walk(
      offsets, entries,
      [this](int64_t node) {
        part_ = assignment_[static_cast<size_t>(node)] & kPartMask;
        ++out_.nodes[part_];
      },
      [this](std::span<const Index> list) { Count(list); }, [](int64_t) {});
}

template <typename Index>
void PartCounts<Index>::Count(std::span<const Index> neighbors) {
  uint64_t inside = 0;
  for (const Index neighbor : neighbors) {
    const auto id = static_cast<size_t>(neighbor);
    if ((assignment_[id] & kPartMask) == part_) {
      ++inside;
    } else if (!out_.cross.empty()) {
      uint32_t& count = out_.cross[id];
      count += count != std::numeric_limits<uint32_t>::max() ? 1 : 0;
    }
  }
  out_.inside[part_] += inside;
  out_.entries[part_] += neighbors.size();
}

template <typename Index>
ListStream::Taken PartLists<Index>::Add(std::span<const int64_t> offsets,
                                        std::span<const Index> entries) {
  return stream_.Walk(
      offsets, entries, [this](int64_t node) { Begin(node); },
      [this](std::span<const Index> list) {
        if (part_ < out_.first_node.size()) Copy(list);
      },
      [](int64_t) {});
}

template <typename Index>
void PartLists<Index>::Begin(int64_t node) {
  part_ = (assignment_[static_cast<size_t>(node)] & kPartMask) - first_part_;  // one before: large
  if (part_ >= out_.first_node.size()) return;
  const auto at = static_cast<uint64_t>(out_.first_node[part_]++);
  if (at >= out_.nodes.size()) {
    throw BadBlock("node " + std::to_string(node) + " has no room in its part");
  }
  out_.nodes[at] = static_cast<Index>(node);
  out_.begins[at] = out_.entries_before + out_.first_entry[part_];
}

template <typename Index>
void PartLists<Index>::Copy(std::span<const Index> entries) {
  const auto at = static_cast<uint64_t>(out_.first_entry[part_]);
  if (at > out_.entries.size() || entries.size() > out_.entries.size() - at) {
    throw BadBlock("indices.npy: changed while it was read");
  }
  std::copy(entries.begin(), entries.end(), out_.entries.begin() + static_cast<ptrdiff_t>(at));
  out_.first_entry[part_] += static_cast<int64_t>(entries.size());
}

template class PartCounts<int32_t>;
template class PartCounts<int64_t>;
template class PartLists<int32_t>;
template class PartLists<int64_t>;

}  // namespace outcrop::layout
