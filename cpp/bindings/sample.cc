// Sample: topologies, the two samplers, the order of seeds.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "bindings/bindings.h"
#include "bindings/file_handle.h"
#include "bindings/lists_handle.h"
#include "disk/engine.h"
#include "random/permutation.h"
#include "sample/cached_topology.h"
#include "sample/neighbor.h"
#include "sample/paged_topology.h"
#include "sample/shadow.h"
#include "sample/topology.h"

namespace outcrop::bindings {
namespace {

using sample::ArrayTopology;
using sample::BatchKey;
using sample::Replace;
using sample::Subgraph;
using sample::Topology;

// A topology as Python holds it, with the arrays that it looks into. Samplers share it through
// their Python objects, so it is freed by a thread that has the GIL.
struct TopologyHandle {
  std::shared_ptr<Topology> topology;
  nb::object arrays;
};

template <typename Index>
TopologyHandle MakeArrayTopology(Array1<const int64_t> indptr, Array1<const Index> indices) {
  Require(indptr.size() >= 1, "indptr needs at least one entry");
  Require(static_cast<uint64_t>(indptr.data()[indptr.size() - 1]) == indices.size(),
          "indptr does not end at the number of indices");
  return {std::make_shared<ArrayTopology<Index>>(Span(indptr), Span(indices)),
          nb::make_tuple(indptr, indices)};
}

template <typename Index>
std::shared_ptr<Topology> PagedOver(const FileHandle& indptr, uint64_t indptr_base,
                                    const FileHandle& indices, uint64_t indices_base,
                                    int64_t num_nodes, int64_t num_edges) {
  using Array = typename sample::PagedTopology<Index>::Array;
  return std::make_shared<sample::PagedTopology<Index>>(
      Array{indptr.file, indptr_base}, Array{indices.file, indices_base}, num_nodes, num_edges);
}

// The files are kept by the topology itself.
TopologyHandle MakePagedTopology(const FileHandle& indptr, uint64_t indptr_base,
                                 const FileHandle& indices, uint64_t indices_base,
                                 uint32_t entry_bytes, int64_t num_nodes, int64_t num_edges) {
  Require(entry_bytes == 4 || entry_bytes == 8, "entry_bytes must be 4 or 8");
  Require(num_nodes >= 0 && num_edges >= 0, "num_nodes and num_edges must not be negative");
  const auto make = entry_bytes == 4 ? PagedOver<int32_t> : PagedOver<int64_t>;
  return {make(indptr, indptr_base, indices, indices_base, num_nodes, num_edges), nb::none()};
}

template <typename Index>
std::shared_ptr<Topology> CachedOver(sample::Offsets offsets, cache::NeighborLists& lists,
                                     disk::Engine& engine, const FileHandle& file, uint64_t base,
                                     cache::MacroLists* macro) {
  return std::make_shared<sample::CachedTopology<Index>>(offsets, lists, engine, file.file, base,
                                                         macro);
}

using HeldOffsets = nb::handle_t<cache::CompressedOffsets>;

sample::Offsets OffsetsIn(const Array1<const int64_t>& indptr) { return Span(indptr); }
sample::Offsets OffsetsIn(HeldOffsets held) {
  return &nb::cast<const cache::CompressedOffsets&>(held);
}

// Offsets and the handles of lists and engine are kept as Python objects, the file by itself.
template <typename Given>
TopologyHandle MakeCachedTopology(Given indptr, nb::handle_t<ListsHandle> lists,
                                  nb::handle_t<disk::Engine> engine, const FileHandle& file,
                                  uint64_t base, MacroListsHandle* macro) {
  cache::MacroLists* more = macro == nullptr ? nullptr : &macro->lists;
  const nb::object held = macro == nullptr ? nb::none() : nb::find(macro);
  cache::NeighborLists& core = nb::cast<ListsHandle&>(lists).lists;
  auto& reader = nb::cast<disk::Engine&>(engine);
  const auto make = core.entry_bytes() == 4 ? CachedOver<int32_t> : CachedOver<int64_t>;
  return {make(OffsetsIn(indptr), core, reader, file, base, more),
          nb::make_tuple(indptr, nb::borrow(lists), nb::borrow(engine), held)};
}

template <typename Given>
void BindCached(nb::module_& m) {
  m.def("cached_topology", &MakeCachedTopology<Given>, nb::arg("indptr").noconvert(),
        nb::arg("lists"), nb::arg("engine"), nb::arg("file"), nb::arg("base"),
        nb::arg("macro").none() = nb::none());
}

uint64_t CachedTopologyBytes(uint32_t entry_bytes, uint64_t nodes, uint64_t entries) {
  return entry_bytes == 4 ? sample::CachedTopology<int32_t>::MostBytes(nodes, entries)
                          : sample::CachedTopology<int64_t>::MostBytes(nodes, entries);
}

// Either sampler. Its result is looked at through views, which are valid until the next sample.
template <typename Sampler>
class SamplerHandle {
 public:
  SamplerHandle(const TopologyHandle& topology, std::vector<int64_t> fanouts, bool replace,
                uint32_t threads)
      : topology_(topology.topology),
        sampler_(*topology_, std::move(fanouts), replace ? Replace::kYes : Replace::kNo, threads) {}

  void Sample(Array1<const int64_t> seeds, uint64_t seed, uint32_t stream, uint32_t epoch,
              uint32_t batch) {
    CheckSeeds(seeds, stream);
    sampler_.Sample({seed, stream, epoch, batch}, Span(seeds));
  }

  void Begin(Array1<const int64_t> seeds, uint64_t seed, uint32_t stream, uint32_t epoch,
             uint32_t batch) {
    CheckSeeds(seeds, stream);
    sampler_.Begin({seed, stream, epoch, batch}, Span(seeds));
  }

  void Finish(Array1<const uint8_t> deferred) {
    CheckDeferred(subgraph().nodes_per_hop, deferred);
    sampler_.Finish(Span(deferred));
  }

  const Subgraph& subgraph() const { return sampler_.subgraph(); }
  void Cancel() { sampler_.Cancel(); }
  uint64_t memory_bytes() const { return sampler_.capacity_bytes(); }

 private:
  void CheckSeeds(const Array1<const int64_t>& seeds, uint32_t stream) const {
    Require(stream < 256, "stream must be below 256");
    CheckNodes(Span(seeds), topology_->num_nodes());
  }

  std::shared_ptr<Topology> topology_;
  Sampler sampler_;
};

template <typename Sampler>
nb::class_<SamplerHandle<Sampler>> BindSampler(nb::module_& m, const char* name) {
  using Handle = SamplerHandle<Sampler>;
  return nb::class_<Handle>(m, name)
      .def(nb::init<const TopologyHandle&, std::vector<int64_t>, bool, uint32_t>(),
           nb::arg("topology"), nb::arg("fanouts"), nb::kw_only(), nb::arg("replace"),
           nb::arg("threads"), nb::keep_alive<1, 2>())
      .def("sample", &Handle::Sample, nb::arg("seeds").noconvert(), nb::kw_only(), nb::arg("seed"),
           nb::arg("stream"), nb::arg("epoch"), nb::arg("batch"), Unlocked())
      .def("cancel", &Handle::Cancel)
      .def_prop_ro("memory_bytes", &Handle::memory_bytes)
      .def_prop_ro("nodes",
                   [](nb::handle_t<Handle> self) {
                     return ViewOf<int64_t>(nb::cast<Handle&>(self).subgraph().nodes, self);
                   })
      .def_prop_ro("sources",
                   [](nb::handle_t<Handle> self) {
                     return ViewOf<uint32_t>(nb::cast<Handle&>(self).subgraph().sources, self);
                   })
      .def_prop_ro("counts",
                   [](nb::handle_t<Handle> self) {
                     return ViewOf<uint32_t>(nb::cast<Handle&>(self).subgraph().counts, self);
                   })
      .def_prop_ro("edge_ids",
                   [](nb::handle_t<Handle> self) {
                     return ViewOf<int64_t>(nb::cast<Handle&>(self).subgraph().edge_ids, self);
                   })
      .def_prop_ro("nodes_per_hop",
                   [](const Handle& self) { return self.subgraph().nodes_per_hop; })
      .def_prop_ro("edges_per_hop",
                   [](const Handle& self) { return self.subgraph().edges_per_hop; })
      .def_prop_ro("roots", [](const Handle& self) { return self.subgraph().roots; });
}

using Edges = nb::ndarray<int64_t, nb::shape<2, -1>, nb::c_contig, nb::device::cpu>;

void ExpandEdges(Array1<const uint32_t> sources, Array1<const uint32_t> counts, Edges out) {
  Require(out.size() == 2 * sources.size(), "out must be [2, number of sources]");
  uint64_t total = 0;
  for (uint32_t count : Span(counts)) total += count;
  Require(total == sources.size(), "counts must add up to the number of sources");
  sample::ExpandEdges(Span(sources), Span(counts), {out.data(), out.size()});
}

// With fewer, five seeds come in some orders 18 % more often than in others.
constexpr uint32_t kSeedRounds = 24;

// Positions [begin, begin + out.size()) of the shuffled order of `size` seeds.
void ShuffledSeeds(uint64_t size, uint64_t seed, uint32_t stream, uint64_t epoch, uint64_t begin,
                   Array1<int64_t> out) {
  Require(begin <= size && out.size() <= size - begin, "beyond the number of seeds");
  const uint64_t key =
      random::Low64(random::Draw(seed, random::Purpose::kSeedOrder, epoch, stream));
  const random::Permutation<kSeedRounds> order(size, key, random::Purpose::kSeedOrder);
  for (size_t i = 0; i < out.size(); ++i) out.data()[i] = static_cast<int64_t>(order(begin + i));
}

}  // namespace

void BindSample(nb::module_& m) {
  nb::class_<TopologyHandle>(m, "Topology")
      .def_prop_ro("num_nodes", [](const TopologyHandle& t) { return t.topology->num_nodes(); })
      .def_prop_ro("num_edges", [](const TopologyHandle& t) { return t.topology->num_edges(); });
  m.def("array_topology", &MakeArrayTopology<int32_t>, nb::arg("indptr").noconvert(),
        nb::arg("indices").noconvert());
  m.def("array_topology", &MakeArrayTopology<int64_t>, nb::arg("indptr").noconvert(),
        nb::arg("indices").noconvert());
  m.def("paged_topology", &MakePagedTopology, nb::arg("indptr"), nb::arg("indptr_base"),
        nb::arg("indices"), nb::arg("indices_base"), nb::kw_only(), nb::arg("entry_bytes"),
        nb::arg("num_nodes"), nb::arg("num_edges"));
  BindCached<Array1<const int64_t>>(m);
  BindCached<HeldOffsets>(m);
  m.def("cached_topology_bytes", &CachedTopologyBytes, nb::arg("entry_bytes"), nb::arg("nodes"),
        nb::arg("entries"));
  using Neighbor = SamplerHandle<sample::NeighborSampler>;
  BindSampler<sample::NeighborSampler>(m, "NeighborSampler")
      .def("begin", &Neighbor::Begin, nb::arg("seeds").noconvert(), nb::kw_only(), nb::arg("seed"),
           nb::arg("stream"), nb::arg("epoch"), nb::arg("batch"), Unlocked())
      .def("finish", &Neighbor::Finish, nb::arg("deferred").noconvert(), Unlocked());
  BindSampler<sample::ShadowSampler>(m, "ShadowSampler");
  m.def("expand_edges", &ExpandEdges, nb::arg("sources").noconvert(), nb::arg("counts").noconvert(),
        nb::arg("out").noconvert(), Unlocked());
  m.def("shuffled_seeds", &ShuffledSeeds, nb::arg("size"), nb::arg("seed"), nb::arg("stream"),
        nb::arg("epoch"), nb::arg("begin"), nb::arg("out").noconvert(), Unlocked());
}

}  // namespace outcrop::bindings
