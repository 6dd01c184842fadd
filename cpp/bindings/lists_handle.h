// Cached lists as Python holds them: neighbor.cc makes them, topologies read them.
#pragma once

#include <nanobind/nanobind.h>

#include "cache/macro_lists.h"
#include "cache/neighbor_lists.h"

namespace outcrop::bindings {

struct ListsHandle {
  ListsHandle(int64_t num_nodes, uint32_t entry_bytes) : lists(num_nodes, entry_bytes) {}

  cache::NeighborLists lists;
  nanobind::object memory;  // that is attached
};

struct MacroListsHandle {
  explicit MacroListsHandle(uint32_t entry_bytes) : lists(entry_bytes) {}

  cache::MacroLists lists;
  nanobind::object memory;  // that is attached
};

}  // namespace outcrop::bindings
