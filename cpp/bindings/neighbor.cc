// Neighbour cache: lists in memory, how they are chosen and made, and the offsets of all lists.
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings/bindings.h"
#include "bindings/lists_handle.h"
#include "cache/choose_lists.h"
#include "cache/offsets.h"

namespace outcrop::bindings {
namespace {

using cache::CompressedOffsets;
using cache::ListBlock;
using cache::NeighborLists;
using cache::PlainOffsets;

// The two kinds of offsets that functions take.
using Indptr = Array1<const int64_t>;

PlainOffsets OffsetsIn(const Indptr& indptr) {
  Require(indptr.size() >= 1, "indptr needs at least one entry");
  return PlainOffsets(Span(indptr));
}

const CompressedOffsets& OffsetsIn(const CompressedOffsets& offsets) {
  Require(offsets.complete(), "entries of indptr are missing");
  return offsets;
}

void CheckCounts(int64_t num_nodes, int64_t num_edges) {
  Require(num_nodes >= 0 && num_edges >= 0, "num_nodes and num_edges must not be negative");
}

void InitOffsets(CompressedOffsets* self, int64_t num_nodes, int64_t num_edges) {
  CheckCounts(num_nodes, num_edges);
  new (self) CompressedOffsets(num_nodes, num_edges);
}

uint64_t OffsetsBytes(int64_t num_nodes, int64_t num_edges) {
  CheckCounts(num_nodes, num_edges);
  return CompressedOffsets::Bytes(num_nodes, num_edges);
}

std::span<ListBlock> BlocksIn(const Array1<uint8_t>& memory, int64_t num_nodes) {
  const uint64_t count = ListBlock::Count(num_nodes);
  Require(memory.size() == count * sizeof(ListBlock), "blocks must have 64 B per 384 nodes");
  Require(reinterpret_cast<uintptr_t>(memory.data()) % alignof(ListBlock) == 0,
          "blocks must be aligned");
  return {reinterpret_cast<ListBlock*>(memory.data()), count};
}

void Attach(ListsHandle& self, Array1<uint8_t> memory, uint64_t lists, uint64_t entries) {
  Require(!self.memory.is_valid(), "lists are attached already");
  const auto* data = reinterpret_cast<const std::byte*>(memory.data());
  {
    nb::gil_scoped_release unlocked;
    self.lists.Attach({data, memory.size()}, lists, entries);
  }
  self.memory = nb::cast(memory);
}

void Detach(ListsHandle& self) {
  {
    nb::gil_scoped_release unlocked;  // samplers that read now may need it to end
    self.lists.Detach();
  }
  self.memory.reset();
}

// The nodes and starts are looked at now, and need not live on.
void AttachMacro(MacroListsHandle& self, Array1<uint8_t> table, Array1<const int64_t> nodes,
                 Array1<const int64_t> starts, Array1<uint8_t> entries) {
  Require(!self.memory.is_valid(), "lists are attached already");
  const auto bytes = [](const Array1<uint8_t>& memory) {
    return std::span(reinterpret_cast<std::byte*>(memory.data()), memory.size());
  };
  {
    nb::gil_scoped_release unlocked;
    self.lists.Attach(bytes(table), Span(nodes), Span(starts), bytes(entries));
  }
  self.memory = nb::make_tuple(table, entries);
}

void DetachMacro(MacroListsHandle& self) {
  {
    nb::gil_scoped_release unlocked;  // as of lists
    self.lists.Detach();
  }
  self.memory.reset();
}

std::tuple<uint64_t, uint64_t, uint64_t, uint64_t> Counts(ListsHandle& self) {
  const NeighborLists::Counts& counts = self.lists.counts();
  return {counts.hit_nodes, counts.hit_entries, counts.miss_nodes, counts.miss_entries};
}

void ResetCounts(ListsHandle& self) {
  NeighborLists::Counts& counts = self.lists.counts();
  for (auto* count :
       {&counts.hit_nodes, &counts.hit_entries, &counts.miss_nodes, &counts.miss_entries}) {
    *count = 0;
  }
}

template <typename Index>
uint64_t CountIds(Array1<const Index> ids, Array1<uint32_t> counts) {
  return cache::CountIds(Span(ids), Span(counts));
}

template <typename Given>
std::tuple<uint64_t, uint64_t> ChooseLists(const Given& given, Array1<const float> scores,
                                           uint32_t entry_bytes, uint64_t room,
                                           Array1<uint8_t> blocks) {
  const auto& offsets = OffsetsIn(given);
  Require(offsets.num_nodes() == static_cast<int64_t>(scores.size()),
          "indptr needs one entry more than scores");
  const cache::Chosen chosen = cache::ChooseLists(offsets, Span(scores), entry_bytes, room,
                                                  BlocksIn(blocks, offsets.num_nodes()));
  return {chosen.lists, chosen.entries};
}

template <typename Given>
void NumberLists(const Given& given, Array1<uint8_t> blocks, Array1<uint32_t> starts) {
  const auto& offsets = OffsetsIn(given);
  const std::span<ListBlock> all = BlocksIn(blocks, offsets.num_nodes());
  uint64_t lists = 0;
  for (const ListBlock& block : all) lists += block.nodes.Count();
  Require(starts.size() == lists, "starts needs one entry per list");
  cache::NumberLists(offsets, all, Span(starts));
}

template <typename Given, typename Index>
std::tuple<int64_t, uint64_t> CopyLists(const Given& given, Array1<uint8_t> blocks, int64_t node,
                                        int64_t first_edge, Array1<const Index> chunk,
                                        Array1<Index> out) {
  const auto& offsets = OffsetsIn(given);
  Require(node >= 0, "node must not be negative");
  Require(out.size() >= chunk.size(), "out needs room for the chunk");
  const cache::Copied copied = cache::CopyLists<Index>(
      offsets, BlocksIn(blocks, offsets.num_nodes()), node, first_edge, Span(chunk), Span(out));
  return {copied.node, copied.entries};
}

template <typename Index>
void BindCount(nb::module_& m) {
  m.def("count_ids", &CountIds<Index>, nb::arg("ids").noconvert(), nb::arg("counts").noconvert(),
        Unlocked());
}

template <typename Given, typename Index>
void BindCopy(nb::module_& m) {
  m.def("copy_lists", &CopyLists<Given, Index>, nb::arg("indptr").noconvert(),
        nb::arg("blocks").noconvert(), nb::arg("node"), nb::arg("first_edge"),
        nb::arg("chunk").noconvert(), nb::arg("out").noconvert(), Unlocked());
}

// What makes a layout, from offsets of either kind.
template <typename Given>
void BindMaking(nb::module_& m) {
  m.def("choose_lists", &ChooseLists<Given>, nb::arg("indptr").noconvert(),
        nb::arg("scores").noconvert(), nb::arg("entry_bytes"), nb::arg("room"),
        nb::arg("blocks").noconvert(), Unlocked());
  m.def("number_lists", &NumberLists<Given>, nb::arg("indptr").noconvert(),
        nb::arg("blocks").noconvert(), nb::arg("starts").noconvert(), Unlocked());
  BindCopy<Given, int32_t>(m);
  BindCopy<Given, int64_t>(m);
}

}  // namespace

void BindNeighbor(nb::module_& m) {
  nb::class_<ListsHandle>(m, "NeighborLists")
      .def(nb::init<int64_t, uint32_t>(), nb::arg("num_nodes"), nb::arg("entry_bytes"))
      .def_static(
          "bytes",
          [](int64_t num_nodes, uint32_t entry_bytes, uint64_t lists, uint64_t entries) {
            return NeighborLists::Bytes(num_nodes, entry_bytes, lists, entries);
          },
          nb::arg("num_nodes"), nb::arg("entry_bytes"), nb::arg("lists"), nb::arg("entries"))
      .def("attach", &Attach, nb::arg("memory").noconvert(), nb::arg("lists"), nb::arg("entries"))
      .def("detach", &Detach)
      .def("counts", &Counts)
      .def("reset_counts", &ResetCounts);
  nb::class_<MacroListsHandle>(m, "MacroLists")
      .def(nb::init<uint32_t>(), nb::arg("entry_bytes"))
      .def_static("table_bytes", &cache::MacroLists::TableBytes, nb::arg("nodes"))
      .def("attach", &AttachMacro, nb::arg("table").noconvert(), nb::arg("nodes").noconvert(),
           nb::arg("starts").noconvert(), nb::arg("entries").noconvert())
      .def("detach", &DetachMacro);
  BindCount<int32_t>(m);
  BindCount<int64_t>(m);
  nb::class_<CompressedOffsets>(m, "CompressedOffsets")
      .def("__init__", &InitOffsets, nb::arg("num_nodes"), nb::arg("num_edges"))
      .def_static("bytes", &OffsetsBytes, nb::arg("num_nodes"), nb::arg("num_edges"))
      .def(
          "append", [](CompressedOffsets& self, Indptr entries) { self.Append(Span(entries)); },
          nb::arg("entries").noconvert(), Unlocked())
      .def_prop_ro("memory_bytes", &CompressedOffsets::memory_bytes);
  BindMaking<Indptr>(m);
  BindMaking<CompressedOffsets>(m);
}

}  // namespace outcrop::bindings
