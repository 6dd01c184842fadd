#include "cache/neighbor_lists.h"

#include <stdexcept>

namespace outcrop::cache {
namespace {

void Check(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

}  // namespace

void NeighborLists::Attach(std::span<const std::byte> memory, uint64_t lists, uint64_t entries) {
  constexpr uint64_t kMost = uint64_t{1} << 56;  // so that no sum overflows
  Check(lists <= static_cast<uint64_t>(num_nodes_) && entries < kMost, "more lists than nodes");
  Check((lists == 0) == (entries == 0), "lists without entries");
  Check(memory.size() == Bytes(num_nodes_, entry_bytes_, lists, entries),
        "the memory's size is not that of the lists");
  Check(reinterpret_cast<uintptr_t>(memory.data()) % alignof(ListBlock) == 0,
        "the memory is not aligned");
  const auto* blocks = reinterpret_cast<const ListBlock*>(memory.data());
  uint64_t before = 0;
  for (uint64_t b = 0; lists != 0 && b < ListBlock::Count(num_nodes_); ++b) {
    Check(blocks[b].lists_before == before && blocks[b].entries_before <= entries,
          "the blocks contradict each other");
    before += blocks[b].nodes.Count();
  }
  Check(before == lists, "the blocks contradict each other");
  const std::lock_guard lock(mutex_);
  blocks_ = blocks;
  starts_ = reinterpret_cast<const uint32_t*>(blocks + ListBlock::Count(num_nodes_));
  entries_ = lists == 0 ? nullptr : memory.data() + EntriesAt(num_nodes_, lists);
  num_entries_ = entries;
}

void NeighborLists::Detach() {
  const std::lock_guard lock(mutex_);
  blocks_ = nullptr;
  starts_ = nullptr;
  entries_ = nullptr;
  num_entries_ = 0;
}

}  // namespace outcrop::cache
