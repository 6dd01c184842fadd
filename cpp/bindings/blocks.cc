// Blocks: a topology -> its block layout.
#include "layout/blocks.h"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings/bindings.h"
#include "disk/align.h"

namespace outcrop::bindings {
namespace {

template <typename Index>
struct WriterHandle {
  WriterHandle(uint64_t size, int64_t num_nodes) : core(Checked(size), num_nodes), block(size) {}

  static uint64_t Checked(uint64_t block_bytes) {
    Require(disk::IsPowerOfTwo(block_bytes) && block_bytes >= layout::kLeastBlockBytes &&
                block_bytes <= layout::kMostBlockBytes,
            "block_bytes must be a power of two of 4 KiB to 4 MiB");
    return block_bytes;
  }

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

}  // namespace

void BindBlocks(nb::module_& m) {
  BindWriter<int32_t>(m, "BlockWriter32");
  BindWriter<int64_t>(m, "BlockWriter64");
}

}  // namespace outcrop::bindings
