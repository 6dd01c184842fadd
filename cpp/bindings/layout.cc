// Pack: who is cached and who is packed, and rows into chunks.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "cache/tiers.h"
#include "layout/row_set.h"
#include "layout/scatter.h"

namespace outcrop::bindings {
namespace {

using Ids = Array1<const int64_t>;

std::span<const std::byte> ByteSpan(const ConstBytes& array) {
  return {static_cast<const std::byte*>(array.data()), array.nbytes()};
}

bool AllWithin(std::span<const int64_t> values, int64_t first, int64_t end) {
  return std::all_of(values.begin(), values.end(),
                     [=](int64_t value) { return value >= first && value < end; });
}

// The table of a graph's nodes, with their number, which nodes are checked against.
template <typename Core>
struct OfNodes {
  Core core;
  int64_t num_nodes;

  void Check(const Ids& nodes) const {
    Require(nodes.size() <= size_t{1} << 31, "a batch has at most 2^31 nodes");
    CheckNodes(Span(nodes), num_nodes);
  }
};
using Counts = OfNodes<cache::AccessCounts>;
using Splitter = OfNodes<cache::TierSplitter>;

nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> Hottest(const Counts& self, size_t slots) {
  using Found = memory::Buffer<int64_t>;
  auto* found = new Found;
  nb::capsule owner(found, [](void* p) noexcept { delete static_cast<Found*>(p); });
  {
    nb::gil_scoped_release unlocked;
    *found = self.core.Hottest(slots);
  }
  static int64_t nothing;
  return {found->size() == 0 ? &nothing : found->data(), {found->size()}, owner};
}

// A result of the last split, as a view.
template <auto result>
auto Part(nb::handle self) {
  return ViewOf((nb::cast<Splitter&>(self).core.*result)(), self);
}

// Its memory is held by the Python object.
struct ScatterHandle {
  Bytes memory;
  layout::Scatter core;
  size_t chunks, row_bytes;

  bool Append(ConstBytes partition, int64_t first_row, Ids run_chunks, Ids counts, Ids ids) {
    Require(run_chunks.size() == counts.size(), "as many chunks as counts");
    std::vector<layout::Run> runs;
    size_t rows = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto chunk = static_cast<size_t>(run_chunks.data()[i]);
      const auto count = static_cast<size_t>(counts.data()[i]);
      Require(chunk < chunks && count <= ids.size(), "a run beyond the chunks or the ids");
      runs.push_back({chunk, count});
      rows += count;
    }
    Require(rows == ids.size(), "counts must name all ids");
    const auto there = static_cast<int64_t>(partition.nbytes() / row_bytes);
    Require(AllWithin(Span(ids), first_row, first_row + there), "an id beyond the partition");
    nb::gil_scoped_release unlocked;
    return core.Append(ByteSpan(partition), first_row, runs, Span(ids));
  }
};

using PieceTuple = std::tuple<size_t, size_t, size_t, size_t>;
PieceTuple AsTuple(const layout::Piece& piece) {
  return {piece.chunk, piece.number, piece.slot, piece.bytes};
}

void BindTiers(nb::module_& m) {
  nb::class_<Counts>(m, "AccessCounts")
      .def(
          "__init__",
          [](Counts* self, int64_t num_nodes, int64_t expected) {
            new (self) Counts{cache::AccessCounts(num_nodes, expected), num_nodes};
          },
          nb::arg("num_nodes"), nb::arg("expected"))
      .def_static("bytes", &cache::AccessCounts::Bytes, nb::arg("num_nodes"), nb::arg("expected"))
      .def_prop_ro("wants_marks", [](const Counts& self) { return self.core.wants_marks(); })
      .def(
          "mark",
          [](Counts& self, Ids nodes) {
            Require(self.core.wants_marks(), "marks are not wanted, or not any more");
            self.Check(nodes);
            self.core.Mark(Span(nodes));
          },
          nb::arg("nodes").noconvert(), Unlocked())
      .def(
          "add",
          [](Counts& self, Ids nodes) {
            self.Check(nodes);
            self.core.Add(Span(nodes));
          },
          nb::arg("nodes").noconvert(), Unlocked())
      .def("hottest", &Hottest, nb::arg("slots"));
  using cache::TierSplitter;
  nb::class_<Splitter>(m, "TierSplitter")
      .def(
          "__init__",
          [](Splitter* self, int64_t num_nodes, Ids cached) {
            CheckNodes(Span(cached), num_nodes);
            new (self) Splitter{TierSplitter(num_nodes, Span(cached)), num_nodes};
          },
          nb::arg("num_nodes"), nb::arg("cached").noconvert())
      .def(
          "split",
          [](Splitter& self, Ids nodes) {
            self.Check(nodes);
            self.core.Split(Span(nodes));
          },
          nb::arg("nodes").noconvert(), Unlocked())
      .def_prop_ro("cached_rows", &Part<&TierSplitter::cached_rows>)
      .def_prop_ro("cached_slots", &Part<&TierSplitter::cached_slots>)
      .def_prop_ro("packed_nodes", &Part<&TierSplitter::packed_nodes>)
      .def_prop_ro("packed_rows", &Part<&TierSplitter::packed_rows>)
      .def_prop_ro("copied_rows", &Part<&TierSplitter::copied_rows>)
      .def_prop_ro("copied_from", &Part<&TierSplitter::copied_from>);
}

void BindScatter(nb::module_& m) {
  nb::class_<ScatterHandle>(m, "Scatter")
      .def(
          "__init__",
          [](ScatterHandle* self, size_t chunks, size_t row_bytes, size_t piece_bytes,
             Bytes memory) {
            Require(row_bytes > 0 && piece_bytes > 0, "rows and pieces need at least one byte");
            Require(memory.nbytes() >= piece_bytes, "memory for at least one piece");
            const std::span<std::byte> bytes(static_cast<std::byte*>(memory.data()),
                                             memory.nbytes());
            new (self) ScatterHandle{memory, layout::Scatter(chunks, row_bytes, piece_bytes, bytes),
                                     chunks, row_bytes};
          },
          nb::arg("chunks"), nb::arg("row_bytes"), nb::arg("piece_bytes"),
          nb::arg("memory").noconvert())
      .def("append", &ScatterHandle::Append, nb::arg("partition").noconvert(), nb::arg("first_row"),
           nb::arg("chunks").noconvert(), nb::arg("counts").noconvert(), nb::arg("ids").noconvert())
      .def("take_full",
           [](ScatterHandle& self) {
             std::vector<PieceTuple> pieces;
             for (const layout::Piece& piece : self.core.TakeFull())
               pieces.push_back(AsTuple(piece));
             return pieces;
           })
      .def(
          "finish",
          [](ScatterHandle& self, size_t chunk, size_t unit) {
            Require(chunk < self.chunks, "no such chunk");
            return AsTuple(self.core.Finish(chunk, unit));
          },
          nb::arg("chunk"), nb::arg("unit"))
      .def("release", [](ScatterHandle& self, size_t slot) { self.core.Release(slot); })
      .def(
          "resume",
          [](ScatterHandle& self, size_t chunk, size_t piece, size_t skip) {
            Require(chunk < self.chunks && skip < self.row_bytes, "no such chunk or byte");
            self.core.Resume(chunk, piece, skip);
          },
          nb::arg("chunk"), nb::arg("piece"), nb::arg("skip"));
}

void CheckRange(const layout::RowSet& self, uint64_t first, uint64_t last) {
  Require(first <= last && last <= self.rows(), "a range of rows that are there");
}

nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>> CountBlocks(const layout::RowSet& self,
                                                          uint64_t first, uint64_t last,
                                                          uint64_t block_rows) {
  CheckRange(self, first, last);
  Require(block_rows > 0, "blocks of at least one row");
  const size_t blocks = (last - first + block_rows - 1) / block_rows;
  auto* counts = new uint64_t[blocks == 0 ? 1 : blocks];
  nb::capsule owner(counts, [](void* p) noexcept { delete[] static_cast<uint64_t*>(p); });
  for (size_t block = 0; block < blocks; ++block) {
    const uint64_t begin = first + block * block_rows;
    counts[block] = self.Count(begin, std::min(begin + block_rows, last));
  }
  return {counts, {blocks}, owner};
}

nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> ListRows(const layout::RowSet& self, uint64_t first,
                                                      uint64_t last) {
  CheckRange(self, first, last);
  const size_t count = self.Count(first, last);
  auto* rows = new int64_t[count == 0 ? 1 : count];
  nb::capsule owner(rows, [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
  self.List(first, last, {rows, count});
  return {rows, {count}, owner};
}

void BindRowSet(nb::module_& m) {
  nb::class_<layout::RowSet>(m, "RowSet")
      .def(nb::init<uint64_t>(), nb::arg("rows"))
      .def_static("bytes", &layout::RowSet::Bytes, nb::arg("rows"))
      .def(
          "add",
          [](layout::RowSet& self, Ids rows) {
            CheckNodes(Span(rows), static_cast<int64_t>(self.rows()));
            self.Add(Span(rows));
          },
          nb::arg("rows").noconvert(), Unlocked())
      .def("count_blocks", &CountBlocks, nb::arg("first"), nb::arg("last"), nb::arg("block_rows"))
      .def("list", &ListRows, nb::arg("first"), nb::arg("last"));
}

}  // namespace

void BindLayout(nb::module_& m) {
  BindTiers(m);
  BindRowSet(m);
  BindScatter(m);
}

}  // namespace outcrop::bindings
