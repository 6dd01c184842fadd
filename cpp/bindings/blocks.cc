// Blocks: a topology -> its block layout, and samplers of many batches from that.
#include "layout/blocks.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/file_handle.h"
#include "disk/align.h"
#include "disk/engine.h"
#include "sample/graph_blocks.h"
#include "sample/hyperbatch.h"

namespace outcrop::bindings {
namespace {

uint64_t CheckBlockBytes(uint64_t block_bytes) {
  Require(disk::IsPowerOfTwo(block_bytes) && block_bytes >= layout::kLeastBlockBytes &&
              block_bytes <= layout::kMostBlockBytes,
          "block_bytes must be a power of two of 4 KiB to 4 MiB");
  return block_bytes;
}

template <typename Index>
struct WriterHandle {
  WriterHandle(uint64_t size, int64_t num_nodes)
      : core(CheckBlockBytes(size), num_nodes), block(size) {}

  std::tuple<size_t, size_t, size_t> Add(Array1<const int64_t> offsets, Array1<const Index> entries,
                                         Array1<uint8_t> out, Array1<int64_t> last_nodes) {
    Require(out.size() == last_nodes.size() * block, "out needs a block for each of last_nodes");
    const auto taken =
        core.Add(Span(offsets), Span(entries), std::as_writable_bytes(Span(out)), Span(last_nodes));
    return {taken.nodes, taken.entries, taken.blocks};
  }

  bool Finish(Array1<uint8_t> out, Array1<int64_t> last_nodes) {
    Require(out.size() >= block && last_nodes.size() >= 1, "out needs room for a block");
    return core.Finish(std::as_writable_bytes(Span(out)).first(block), last_nodes.data());
  }

  layout::BlockWriter<Index> core;
  uint64_t block;
};

template <typename Index>
void BindWriter(nb::module_& m, const char* name) {
  using Handle = WriterHandle<Index>;
  nb::class_<Handle>(m, name)
      .def(nb::init<uint64_t, int64_t>(), nb::arg("block_bytes"), nb::arg("num_nodes"))
      .def("add", &Handle::Add, nb::arg("offsets").noconvert(), nb::arg("entries").noconvert(),
           nb::arg("out").noconvert(), nb::arg("last_nodes").noconvert(), Unlocked())
      .def("finish", &Handle::Finish, nb::arg("out").noconvert(), nb::arg("last_nodes").noconvert(),
           Unlocked())
      .def_prop_ro("num_edges", [](const Handle& self) { return self.core.num_edges(); });
}

// Blocks as Python holds them, with the index and the engine that they look into.
struct BlocksHandle {
  std::shared_ptr<sample::GraphBlocks> blocks;
  nb::object kept;
};

BlocksHandle MakeBlocks(Array1<const int64_t> last_nodes, nb::handle_t<disk::Engine> engine,
                        const FileHandle& file, uint64_t base, int64_t num_nodes, int64_t num_edges,
                        uint64_t block_bytes, uint32_t entry_bytes, uint64_t buffer_blocks) {
  Require(entry_bytes == 4 || entry_bytes == 8, "entry_bytes must be 4 or 8");
  Require(num_nodes >= 0 && num_edges >= 0, "num_nodes and num_edges must not be negative");
  Require(buffer_blocks >= 2, "buffer_blocks must be at least 2");
  CheckBlockBytes(block_bytes);
  sample::GraphBlocks::Source source;
  source.last_nodes = Span(last_nodes);
  source.num_nodes = num_nodes;
  source.num_edges = num_edges;
  source.block_bytes = block_bytes;
  source.entry_bytes = entry_bytes;
  source.engine = &nb::cast<disk::Engine&>(engine);
  source.file = file.file;
  source.base = base;
  return {std::make_shared<sample::GraphBlocks>(source, buffer_blocks),
          nb::make_tuple(last_nodes, nb::borrow(engine))};
}

// Its result is looked at through views, which are valid until the next load.
class HyperbatchHandle {
 public:
  HyperbatchHandle(const BlocksHandle& blocks, std::vector<int64_t> fanouts, bool replace,
                   bool edge_ids, uint32_t threads, uint64_t memory_bytes, std::string scratch)
      : blocks_(blocks.blocks),
        sampler_(*blocks_,
                 {std::move(fanouts), replace ? sample::Replace::kYes : sample::Replace::kNo,
                  edge_ids, threads, memory_bytes, std::move(scratch)}) {}

  void Begin(size_t batches) { sampler_.Begin(batches); }

  void Add(Array1<const int64_t> seeds, uint64_t seed, uint32_t stream, uint32_t epoch,
           uint32_t batch) {
    Require(stream < 256, "stream must be below 256");
    CheckNodes(Span(seeds), blocks_->num_nodes());
    sampler_.Add({seed, stream, epoch, batch}, Span(seeds));
  }

  void Load(size_t batch) {
    Require(batch < sampler_.size(), "there is no such batch");
    sampler_.Load(batch);
  }

  void Sample() { sampler_.Sample(); }

  void LoadFirst(size_t batch) {
    Require(batch < sampler_.size(), "there is no such batch");
    sampler_.LoadFirst(batch);
  }

  void Continue(size_t batch, Array1<const uint8_t> deferred) {
    Require(batch < sampler_.size(), "there is no such batch");
    CheckDeferred(subgraph().nodes_per_hop, deferred);
    sampler_.Continue(batch, Span(deferred));
  }

  void SampleFirst() { sampler_.SampleFirst(); }
  void SampleOthers() { sampler_.SampleOthers(); }
  const sample::Subgraph& subgraph() const { return sampler_.subgraph(); }
  void Cancel() { sampler_.Cancel(); }
  uint64_t memory_bytes() const { return sampler_.capacity_bytes(); }
  uint64_t spilled_bytes() const { return sampler_.spilled_bytes(); }

 private:
  std::shared_ptr<sample::GraphBlocks> blocks_;
  sample::HyperbatchSampler sampler_;
};

void BindHyperbatch(nb::module_& m) {
  using Handle = HyperbatchHandle;
  const auto self = [](nb::handle_t<Handle> handle) -> const sample::Subgraph& {
    return nb::cast<Handle&>(handle).subgraph();
  };
  nb::class_<Handle>(m, "HyperbatchSampler")
      .def(nb::init<const BlocksHandle&, std::vector<int64_t>, bool, bool, uint32_t, uint64_t,
                    std::string>(),
           nb::arg("blocks"), nb::arg("fanouts"), nb::kw_only(), nb::arg("replace"),
           nb::arg("edge_ids"), nb::arg("threads"), nb::arg("memory_bytes"), nb::arg("scratch"),
           nb::keep_alive<1, 2>())
      .def_static("least_bytes", &sample::HyperbatchSampler::LeastBytes, nb::arg("batches"))
      .def("begin", &Handle::Begin, nb::arg("batches"))
      .def("add", &Handle::Add, nb::arg("seeds").noconvert(), nb::kw_only(), nb::arg("seed"),
           nb::arg("stream"), nb::arg("epoch"), nb::arg("batch"), Unlocked())
      .def("sample", &Handle::Sample, Unlocked())
      .def("sample_first", &Handle::SampleFirst, Unlocked())
      .def("load_first", &Handle::LoadFirst, nb::arg("batch"), Unlocked())
      .def("go_on", &Handle::Continue, nb::arg("batch"), nb::arg("deferred").noconvert(),
           Unlocked())
      .def("sample_others", &Handle::SampleOthers, Unlocked())
      .def("load", &Handle::Load, nb::arg("batch"), Unlocked())
      .def("cancel", &Handle::Cancel)
      .def_prop_ro("memory_bytes", &Handle::memory_bytes)
      .def_prop_ro("spilled_bytes", &Handle::spilled_bytes)
      .def_prop_ro("nodes",
                   [self](nb::handle_t<Handle> h) { return ViewOf<int64_t>(self(h).nodes, h); })
      .def_prop_ro("sources",
                   [self](nb::handle_t<Handle> h) { return ViewOf<uint32_t>(self(h).sources, h); })
      .def_prop_ro("counts",
                   [self](nb::handle_t<Handle> h) { return ViewOf<uint32_t>(self(h).counts, h); })
      .def_prop_ro("edge_ids",
                   [self](nb::handle_t<Handle> h) { return ViewOf<int64_t>(self(h).edge_ids, h); })
      .def_prop_ro("nodes_per_hop", [](const Handle& h) { return h.subgraph().nodes_per_hop; })
      .def_prop_ro("edges_per_hop", [](const Handle& h) { return h.subgraph().edges_per_hop; });
}

}  // namespace

void BindBlocks(nb::module_& m) {
  nb::class_<BlocksHandle>(m, "GraphBlocks")
      .def_prop_ro("memory_bytes",
                   [](const BlocksHandle& self) { return self.blocks->memory_bytes(); })
      .def("counts", [](const BlocksHandle& self) {
        const sample::GraphBlocks::Counts counts = self.blocks->counts();
        return std::tuple(counts.found, counts.read);
      });
  m.def("graph_blocks", &MakeBlocks, nb::arg("last_nodes").noconvert(), nb::arg("engine"),
        nb::arg("file"), nb::arg("base"), nb::kw_only(), nb::arg("num_nodes"), nb::arg("num_edges"),
        nb::arg("block_bytes"), nb::arg("entry_bytes"), nb::arg("buffer_blocks"));
  BindHyperbatch(m);
  BindWriter<int32_t>(m, "BlockWriter32");
  BindWriter<int64_t>(m, "BlockWriter64");
}

}  // namespace outcrop::bindings
