#include "cache/choose_lists.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <vector>

namespace outcrop::cache {
namespace {

constexpr uint32_t kMostCount = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kLowBits = 16;

// A score's bits, which order like the scores themselves where none is negative.
uint32_t KeyOf(float score) {
  if (!(score >= 0)) throw std::invalid_argument("scores must be numbers that are not negative");
  return std::bit_cast<uint32_t>(score == 0 ? 0.0F : score);  // -0 is 0
}

// The largest bucket that, with all above it, costs more than `room`; what is above it is taken
// off the room. -1: all of them fit.
int64_t Boundary(std::span<const uint64_t> costs, uint64_t* room) {
  for (size_t bucket = costs.size(); bucket-- > 0;) {
    if (costs[bucket] > *room) return static_cast<int64_t>(bucket);
    *room -= costs[bucket];
  }
  return -1;
}

template <typename Offsets>
class Chooser {
 public:
  Chooser(const Offsets& offsets, std::span<const float> scores, uint32_t entry_bytes,
          uint64_t room, std::span<ListBlock> blocks)
      : offsets_(offsets),
        scores_(scores),
        entry_bytes_(entry_bytes),
        room_(room),
        blocks_(blocks) {}

  // A round takes all candidates down to the score whose nodes do not all fit, and of those what
  // fits. After it only lower scores and lists that fit into what is left are candidates, so the
  // rounds together take what one walk in sorted order would, and nothing has to be sorted.
  Chosen Run() {
    while (Round()) {
    }
    return chosen_;
  }

 private:
  template <typename Visit>
  void ForCandidates(Visit visit) const {
    offsets_.ForAll([&](int64_t node, Bounds bounds) {
      const int64_t degree = bounds.end - bounds.begin;
      if (degree <= 0 || degree > kLongestList) return;
      const auto at = static_cast<size_t>(node);
      const uint32_t key = KeyOf(scores_[at]);
      const uint64_t cost = 4 + static_cast<uint64_t>(degree) * entry_bytes_;
      if (key < below_ && cost <= limit_) visit(at, key, cost);
    });
  }

  // The score whose candidates do not all fit, by histograms of the upper, then of the lower half
  // of the keys; -1 where everything fits. `room`: what is left when all above it are taken.
  int64_t Threshold(uint64_t* room) const {
    std::vector<uint64_t> costs(size_t{1} << kLowBits);
    ForCandidates([&](size_t, uint32_t key, uint64_t cost) { costs[key >> kLowBits] += cost; });
    const int64_t high = Boundary(costs, room);
    if (high < 0) return -1;
    std::fill(costs.begin(), costs.end(), 0);
    ForCandidates([&](size_t, uint32_t key, uint64_t cost) {
      if (key >> kLowBits == static_cast<uint64_t>(high)) costs[key & 0xFFFF] += cost;
    });
    return high << kLowBits | Boundary(costs, room);
  }

  // Whether there is more to choose.
  bool Round() {
    limit_ = room_;
    const int64_t threshold = Threshold(&room_);
    ForCandidates([&](size_t node, uint32_t key, uint64_t cost) {
      if (static_cast<int64_t>(key) < threshold) return;
      if (static_cast<int64_t>(key) == threshold) {
        if (cost > room_) return;
        room_ -= cost;
      }
      Take(node, cost);
    });
    below_ = threshold < 0 ? 0 : static_cast<uint64_t>(threshold);
    return below_ > 0 && room_ >= 4 + entry_bytes_;
  }

  void Take(size_t node, uint64_t cost) {
    blocks_[node / ListBlock::kNodes].nodes.Add(node % ListBlock::kNodes);
    ++chosen_.lists;
    chosen_.entries += (cost - 4) / entry_bytes_;
  }

  const Offsets& offsets_;
  const std::span<const float> scores_;
  const uint32_t entry_bytes_;
  uint64_t room_;
  const std::span<ListBlock> blocks_;
  uint64_t below_ = uint64_t{1} << 32;  // candidates have lower keys
  uint64_t limit_ = 0;                  // and cost no more
  Chosen chosen_;
};

}  // namespace

template <typename Index>
uint64_t CountIds(std::span<const Index> ids, std::span<uint32_t> counts) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<uint64_t>(ids[i]);
    if (id >= counts.size()) return i;
    counts[id] += counts[id] != kMostCount ? 1 : 0;
  }
  return ids.size();
}

template uint64_t CountIds(std::span<const int32_t>, std::span<uint32_t>);
template uint64_t CountIds(std::span<const int64_t>, std::span<uint32_t>);

template <typename Offsets>
Chosen ChooseLists(const Offsets& offsets, std::span<const float> scores, uint32_t entry_bytes,
                   uint64_t room, std::span<ListBlock> blocks) {
  return Chooser<Offsets>(offsets, scores, entry_bytes, room, blocks).Run();
}

template <typename Offsets>
void NumberLists(const Offsets& offsets, std::span<ListBlock> blocks, std::span<uint32_t> starts) {
  uint64_t lists = 0, entries = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].lists_before = lists;
    blocks[b].entries_before = entries;
    blocks[b].nodes.ForEach([&](uint64_t bit) {
      const size_t node = b * ListBlock::kNodes + bit;
      starts[lists++] = static_cast<uint32_t>(entries - blocks[b].entries_before);
      const Bounds bounds = offsets.At(static_cast<int64_t>(node));
      entries += static_cast<uint64_t>(bounds.end - bounds.begin);
    });
  }
}

template <typename Index, typename Offsets>
Copied CopyLists(const Offsets& offsets, std::span<const ListBlock> blocks, int64_t node,
                 int64_t first_edge, std::span<const Index> chunk, std::span<Index> out) {
  const int64_t end_edge = first_edge + static_cast<int64_t>(chunk.size());
  uint64_t copied = 0;
  for (; node < offsets.num_nodes(); ++node) {
    const auto at = static_cast<size_t>(node);
    const Bounds list = offsets.At(node);
    if (list.begin >= end_edge) break;
    const int64_t begin = std::max(list.begin, first_edge), end = std::min(list.end, end_edge);
    if (begin < end && blocks[at / ListBlock::kNodes].nodes.Has(at % ListBlock::kNodes)) {
      const auto count = static_cast<size_t>(end - begin);
      if (count > out.size() - copied) throw std::invalid_argument("offsets descend");
      std::copy_n(chunk.begin() + (begin - first_edge), count,
                  out.begin() + static_cast<ptrdiff_t>(copied));
      copied += count;
    }
    if (list.end > end_edge) break;  // the rest of it comes with the next chunk
  }
  return {node, copied};
}

#define OUTCROP_FOR_OFFSETS(Offsets)                                                      \
  template Chosen ChooseLists(const Offsets&, std::span<const float>, uint32_t, uint64_t, \
                              std::span<ListBlock>);                                      \
  template void NumberLists(const Offsets&, std::span<ListBlock>, std::span<uint32_t>);   \
  template Copied CopyLists(const Offsets&, std::span<const ListBlock>, int64_t, int64_t, \
                            std::span<const int32_t>, std::span<int32_t>);                \
  template Copied CopyLists(const Offsets&, std::span<const ListBlock>, int64_t, int64_t, \
                            std::span<const int64_t>, std::span<int64_t>);
OUTCROP_FOR_OFFSETS(PlainOffsets)
OUTCROP_FOR_OFFSETS(CompressedOffsets)
#undef OUTCROP_FOR_OFFSETS

}  // namespace outcrop::cache
