#include "cache/macro_lists.h"

#include <algorithm>
#include <stdexcept>

namespace outcrop::cache {
namespace {

void Check(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

}  // namespace

void MacroLists::Attach(std::span<std::byte> table, std::span<const int64_t> nodes,
                        std::span<const int64_t> starts, std::span<const std::byte> entries) {
  const uint64_t slots = Slots(nodes.size());
  Check(table.size() == slots * sizeof(Slot), "the table's size is not that of the nodes");
  Check(reinterpret_cast<uintptr_t>(table.data()) % alignof(Slot) == 0 &&
            reinterpret_cast<uintptr_t>(entries.data()) % entry_bytes_ == 0,
        "the memory is not aligned");
  Check(starts.size() == nodes.size() + 1 && starts.front() == 0 &&
            static_cast<uint64_t>(starts.back()) == entries.size() / entry_bytes_ &&
            entries.size() % entry_bytes_ == 0 && std::is_sorted(starts.begin(), starts.end()),
        "the starts of lists contradict the entries");
  const std::span<Slot> made(reinterpret_cast<Slot*>(table.data()), slots);
  std::fill(made.begin(), made.end(), Slot{Slot::kFree, 0});
  for (size_t i = 0; i < nodes.size(); ++i) {
    Check(nodes[i] >= 0, "a node must not be negative");
    uint64_t at = Home(nodes[i], slots);
    while (made[at].node != Slot::kFree && made[at].node != nodes[i]) at = (at + 1) & (slots - 1);
    Check(made[at].node == Slot::kFree, "a node is there twice");
    made[at] = {nodes[i], static_cast<uint64_t>(starts[i])};
  }
  const std::lock_guard lock(mutex_);
  table_ = made;
  entries_ = entries.data();
  num_entries_ = entries.size() / entry_bytes_;
}

void MacroLists::Detach() {
  const std::lock_guard lock(mutex_);
  table_ = {};
  entries_ = nullptr;
  num_entries_ = 0;
}

}  // namespace outcrop::cache
