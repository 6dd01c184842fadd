// Neighbour cache: lists in memory, and how they are chosen and made.
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings/bindings.h"
#include "bindings/lists_handle.h"
#include "cache/choose_lists.h"

namespace outcrop::bindings {
namespace {

using cache::ListBlock;
using cache::NeighborLists;

std::span<ListBlock> BlocksIn(const Array1<uint8_t>& memory, size_t num_nodes) {
  const uint64_t count = ListBlock::Count(static_cast<int64_t>(num_nodes));
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

std::tuple<uint64_t, uint64_t> ChooseLists(Array1<const int64_t> indptr, Array1<const float> scores,
                                           uint32_t entry_bytes, uint64_t room,
                                           Array1<uint8_t> blocks) {
  Require(indptr.size() == scores.size() + 1, "indptr needs one entry more than scores");
  const cache::Chosen chosen = cache::ChooseLists(Span(indptr), Span(scores), entry_bytes, room,
                                                  BlocksIn(blocks, scores.size()));
  return {chosen.lists, chosen.entries};
}

void NumberLists(Array1<const int64_t> indptr, Array1<uint8_t> blocks, Array1<uint32_t> starts) {
  Require(indptr.size() >= 1, "indptr needs at least one entry");
  const std::span<ListBlock> all = BlocksIn(blocks, indptr.size() - 1);
  uint64_t lists = 0;
  for (const ListBlock& block : all) lists += block.Lists();
  Require(starts.size() == lists, "starts needs one entry per list");
  cache::NumberLists(Span(indptr), all, Span(starts));
}

template <typename Index>
std::tuple<int64_t, uint64_t> CopyLists(Array1<const int64_t> indptr, Array1<uint8_t> blocks,
                                        int64_t node, int64_t first_edge, Array1<const Index> chunk,
                                        Array1<Index> out) {
  Require(indptr.size() >= 1 && node >= 0, "indptr needs at least one entry");
  Require(out.size() >= chunk.size(), "out needs room for the chunk");
  const cache::Copied copied = cache::CopyLists<Index>(
      Span(indptr), BlocksIn(blocks, indptr.size() - 1), node, first_edge, Span(chunk), Span(out));
  return {copied.node, copied.entries};
}

template <typename Index>
void BindIndexed(nb::module_& m) {
  m.def("count_ids", &CountIds<Index>, nb::arg("ids").noconvert(), nb::arg("counts").noconvert(),
        Unlocked());
  m.def("copy_lists", &CopyLists<Index>, nb::arg("indptr").noconvert(),
        nb::arg("blocks").noconvert(), nb::arg("node"), nb::arg("first_edge"),
        nb::arg("chunk").noconvert(), nb::arg("out").noconvert(), Unlocked());
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
  BindIndexed<int32_t>(m);
  BindIndexed<int64_t>(m);
  m.def("choose_lists", &ChooseLists, nb::arg("indptr").noconvert(), nb::arg("scores").noconvert(),
        nb::arg("entry_bytes"), nb::arg("room"), nb::arg("blocks").noconvert(), Unlocked());
  m.def("number_lists", &NumberLists, nb::arg("indptr").noconvert(), nb::arg("blocks").noconvert(),
        nb::arg("starts").noconvert(), Unlocked());
}

}  // namespace outcrop::bindings
