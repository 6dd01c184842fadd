// Segments: rows that consecutive batches share, their order, and checksums of their pages.
#include "layout/segment.h"

#include <algorithm>

#include "bindings/bindings.h"
#include "disk/file.h"
#include "layout/pages.h"

namespace outcrop::bindings {
namespace {

using Ids = Array1<const int64_t>;
using layout::Segment;

struct SegmentHandle {
  Segment core;
  int64_t num_nodes;
  layout::Order order;
  bool shares = false;

  void Add(uint32_t batch, Ids nodes) {
    Require(!shares, "the segment has its positions already");
    const uint32_t most =
        order == layout::Order::kSet ? Segment::kMostInSet : Segment::kMostBatches;
    Require(batch < most, "more batches than this order can have in a segment");
    CheckNodes(Span(nodes), num_nodes);
    nb::gil_scoped_release unlocked;
    core.Add(batch, Span(nodes));
  }

  void Split(Ids nodes) {
    Require(shares, "share first");
    CheckNodes(Span(nodes), num_nodes);
    nb::gil_scoped_release unlocked;
    core.Split(Span(nodes));
  }
};

template <auto result>
auto Part(nb::handle self) {
  return ViewOf((nb::cast<SegmentHandle&>(self).core.*result)(), self);
}

void BindOne(nb::module_& m) {
  nb::enum_<layout::Order>(m, "SegmentOrder")
      .value("ID", layout::Order::kId)
      .value("SET", layout::Order::kSet)
      .value("MINHASH", layout::Order::kMinHash)
      .value("PRINTED", layout::Order::kPrinted);
  nb::class_<SegmentHandle>(m, "Segment")
      .def(
          "__init__",
          [](SegmentHandle* self, int64_t num_nodes, int64_t expected, layout::Order order,
             uint32_t hashes) {
            Require(num_nodes <= Segment::kMostNodes, "a segment takes up to 2^40 nodes");
            Require(hashes >= 1 && hashes <= Segment::kMostHashes, "1 to 4 hashes");
            new (self) SegmentHandle{Segment(num_nodes, expected, order, hashes), num_nodes, order};
          },
          nb::arg("num_nodes"), nb::arg("expected"), nb::arg("order"), nb::arg("hashes"))
      .def("add", &SegmentHandle::Add, nb::arg("batch"), nb::arg("nodes").noconvert())
      .def(
          "count",
          [](const SegmentHandle& self, Array1<uint64_t> having) {
            Require(!self.shares && having.size() > 0, "count before share");
            nb::gil_scoped_release unlocked;
            self.core.Count(Span(having));
          },
          nb::arg("having").noconvert())
      .def(
          "count_of",
          [](const SegmentHandle& self, Ids nodes, Array1<uint64_t> having) {
            Require(!self.shares && having.size() > 0, "count before share");
            CheckNodes(Span(nodes), self.num_nodes);
            nb::gil_scoped_release unlocked;
            self.core.CountOf(Span(nodes), Span(having));
          },
          nb::arg("nodes").noconvert(), nb::arg("having").noconvert())
      .def(
          "share",
          [](SegmentHandle& self, uint32_t above) {
            Require(!self.shares, "the segment has its positions already");
            self.shares = true;
            nb::gil_scoped_release unlocked;
            return self.core.Share(above);
          },
          nb::arg("above"))
      .def("split", &SegmentHandle::Split, nb::arg("nodes").noconvert())
      .def_prop_ro("own", &Part<&Segment::own>)
      .def_prop_ro("shared", &Part<&Segment::shared>)
      .def_prop_ro("positions", &Part<&Segment::positions>)
      .def(
          "bucket",
          [](SegmentHandle& self, size_t begin, Array1<int64_t> nodes, Array1<uint32_t> places) {
            Require(self.shares, "share first");
            Require(nodes.size() == places.size(), "as many places as nodes");
            Require(begin + nodes.size() <= self.core.rows(), "positions beyond the segment");
            nb::gil_scoped_release unlocked;
            self.core.Bucket(begin, begin + nodes.size(), Span(nodes), Span(places));
          },
          nb::arg("begin"), nb::arg("nodes").noconvert(), nb::arg("places").noconvert())
      .def("clear", [](SegmentHandle& self) {
        self.core.Clear();
        self.shares = false;
      });
  m.def("segment_bytes", &Segment::Bytes, nb::arg("num_nodes"), nb::arg("distinct"));
}

struct PairsHandle {
  layout::ReusePairs core;
  int64_t num_nodes;
  uint32_t units;
};

void BindPairs(nb::module_& m) {
  nb::class_<PairsHandle>(m, "ReusePairs")
      .def(
          "__init__",
          [](PairsHandle* self, int64_t num_nodes, int64_t expected, uint32_t units) {
            new (self)
                PairsHandle{layout::ReusePairs(num_nodes, expected, units), num_nodes, units};
          },
          nb::arg("num_nodes"), nb::arg("expected"), nb::arg("units"))
      .def(
          "add",
          [](PairsHandle& self, uint32_t unit, Ids nodes) {
            Require(unit < self.units, "no such unit");
            CheckNodes(Span(nodes), self.num_nodes);
            nb::gil_scoped_release unlocked;
            self.core.Add(unit, Span(nodes));
          },
          nb::arg("unit"), nb::arg("nodes").noconvert())
      .def_prop_ro("pairs", [](nb::handle self) {
        return ViewOf(nb::cast<PairsHandle&>(self).core.pairs(), self);
      });
}

std::span<const std::byte> Pages(const ConstBytes& array) {
  Require(array.nbytes() % disk::kPageBytes == 0, "whole pages");
  return {static_cast<const std::byte*>(array.data()), array.nbytes()};
}

void BindPages(nb::module_& m) {
  m.def(
      "sum_of_pages",
      [](ConstBytes bytes, Ids firsts, Ids counts) {
        Require(firsts.size() == counts.size(), "as many counts as runs");
        size_t pages = 0;
        for (const int64_t count : Span(counts)) {
          Require(count >= 0, "no negative counts");
          pages += static_cast<size_t>(count);
        }
        const auto all = Pages(bytes);
        Require(pages == all.size() / disk::kPageBytes, "counts must name all pages");
        nb::gil_scoped_release unlocked;
        return layout::SumOfPages(all, Span(firsts), Span(counts));
      },
      nb::arg("bytes").noconvert(), nb::arg("firsts").noconvert(), nb::arg("counts").noconvert());
  m.def(
      "checksum_pages",
      [](ConstBytes bytes, uint64_t first, Array1<uint64_t> out) {
        const auto all = Pages(bytes);
        Require(out.size() == all.size() / disk::kPageBytes, "as many checksums as pages");
        nb::gil_scoped_release unlocked;
        layout::ChecksumPages(all, first, Span(out));
      },
      nb::arg("bytes").noconvert(), nb::arg("first"), nb::arg("out").noconvert());
}

}  // namespace

void BindSegment(nb::module_& m) {
  BindOne(m);
  BindPairs(m);
  BindPages(m);
}

}  // namespace outcrop::bindings
