// Synth: random graphs, features and labels; the expansion of a graph.
#include "ingest/synth.h"

#include <span>

#include "bindings/records.h"
#include "ingest/expand.h"

namespace outcrop::bindings {
namespace {

using ingest::CommunityGraph;
using ingest::Expansion;
using ingest::RmatGraph;

template <typename Graph>
void Edges(const Graph& graph, uint64_t first, size_t count, Records out, bool wide) {
  if (wide) {
    graph.Edges(first, RecordSpan<ingest::Edge<uint64_t>>(out, count));
  } else {
    graph.Edges(first, RecordSpan<ingest::Edge<uint32_t>>(out, count));
  }
}

void Features(uint64_t seed, double signal, uint64_t first, Array1<const int64_t> labels,
              nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
  Require(out.shape(0) == labels.size(), "out needs one row per label");
  ingest::Features(seed, signal, first, Span(labels), out.shape(1),
                   std::span<float>(out.data(), out.size()));
}

template <typename In, typename Out>
size_t Expand(const Expansion& expansion, uint64_t copy, Array1<const int64_t> indptr,
              Array1<const In> indices, Array1<Out> out, Array1<int64_t> degrees) {
  return expansion.Expand(copy, Span(indptr), Span(indices), Span(out), Span(degrees));
}

}  // namespace

void BindSynth(nb::module_& m) {
  nb::class_<RmatGraph>(m, "RmatGraph")
      .def(nb::init<uint64_t, double, double, double, uint64_t>(), nb::arg("num_nodes"),
           nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("seed"))
      .def("edges", &Edges<RmatGraph>, nb::arg("first"), nb::arg("count"),
           nb::arg("out").noconvert(), nb::arg("wide"), Unlocked());
  nb::class_<CommunityGraph>(m, "CommunityGraph")
      .def(nb::init<uint64_t, uint64_t, uint64_t, double, uint64_t>(), nb::arg("num_nodes"),
           nb::arg("communities"), nb::arg("classes"), nb::arg("homophily"), nb::arg("seed"))
      .def("edges", &Edges<CommunityGraph>, nb::arg("first"), nb::arg("count"),
           nb::arg("out").noconvert(), nb::arg("wide"), Unlocked())
      .def(
          "labels",
          [](const CommunityGraph& self, uint64_t first, Array1<int64_t> out) {
            self.Labels(first, Span(out));
          },
          nb::arg("first"), nb::arg("out").noconvert(), Unlocked());
  m.def(
      "random_labels",
      [](uint64_t classes, uint64_t seed, uint64_t first, Array1<int64_t> out) {
        ingest::RandomLabels(classes, seed, first, Span(out));
      },
      nb::arg("classes"), nb::arg("seed"), nb::arg("first"), nb::arg("out").noconvert(),
      Unlocked());
  m.def(
      "random_order",
      [](uint64_t num_nodes, uint64_t seed, uint64_t first, Array1<int64_t> out) {
        Require(first + out.size() <= num_nodes, "more nodes wanted than there are");
        ingest::RandomOrder(num_nodes, seed, first, Span(out));
      },
      nb::arg("num_nodes"), nb::arg("seed"), nb::arg("first"), nb::arg("out").noconvert(),
      Unlocked());
  m.def("features", &Features, nb::arg("seed"), nb::arg("signal"), nb::arg("first"),
        nb::arg("labels").noconvert(), nb::arg("out").noconvert(), Unlocked());
  nb::class_<Expansion>(m, "Expansion")
      .def(
          "__init__",
          [](Expansion* self, uint64_t num_nodes, uint64_t copies, Array1<const double> kernel,
             uint64_t seed) {
            Require(kernel.size() == copies * copies, "kernel must be copies x copies");
            new (self) Expansion(num_nodes, copies, Span(kernel), seed);
          },
          nb::arg("num_nodes"), nb::arg("copies"), nb::arg("kernel").noconvert(), nb::arg("seed"))
      .def("expand", &Expand<int32_t, int32_t>, nb::arg("copy"), nb::arg("indptr").noconvert(),
           nb::arg("indices").noconvert(), nb::arg("out").noconvert(),
           nb::arg("degrees").noconvert(), Unlocked())
      .def("expand", &Expand<int32_t, int64_t>, nb::arg("copy"), nb::arg("indptr").noconvert(),
           nb::arg("indices").noconvert(), nb::arg("out").noconvert(),
           nb::arg("degrees").noconvert(), Unlocked())
      .def("expand", &Expand<int64_t, int64_t>, nb::arg("copy"), nb::arg("indptr").noconvert(),
           nb::arg("indices").noconvert(), nb::arg("out").noconvert(),
           nb::arg("degrees").noconvert(), Unlocked());
}

}  // namespace outcrop::bindings
