// Cache: the buffer of slots with reference counts.
#include "cache/refcount.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/bindings.h"

namespace outcrop::bindings {
namespace {

using cache::Claim;
using cache::Expected;
using cache::Reuse;
using cache::RowLayout;
using cache::SlotBuffer;

// The buffer as Python holds it; claims share the buffer itself.
struct BufferHandle {
  std::shared_ptr<SlotBuffer> buffer;
};

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

Reuse ReuseOf(bool counted) { return counted ? Reuse::kLeastOften : Reuse::kLeastRecent; }

void MakeLayout(RowLayout* self, uint64_t base_bytes, uint64_t row_bytes, uint64_t unit_bytes,
                uint64_t gap_bytes) {
  Require(row_bytes > 0, "row_bytes must be more than 0");
  Require(disk::IsPowerOfTwo(unit_bytes), "unit_bytes must be a power of two");
  new (self) RowLayout{base_bytes, row_bytes, unit_bytes, gap_bytes};
}

void MakeBuffer(BufferHandle* self, int64_t num_nodes, int64_t num_slots, bool counted,
                std::optional<RowLayout> layout) {
  Require(num_slots > 0 && num_slots <= INT32_MAX, "slots must be 1 to 2^31 - 1");
  new (self)
      BufferHandle{std::make_shared<SlotBuffer>(num_nodes, num_slots, ReuseOf(counted), layout)};
}

bool OfGraph(std::span<const int64_t> nodes, const SlotBuffer& buffer) {
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](int64_t node) { return node >= 0 && node < buffer.num_nodes(); });
}

std::optional<Claim> Reserve(const BufferHandle& handle, Array1<const int64_t> nodes,
                             double seconds, const Expected* expected) {
  const std::span<const int64_t> wanted = Span(nodes);
  const SlotBuffer& buffer = *handle.buffer;
  Require(std::is_sorted(wanted.begin(), wanted.end()), "nodes must be ascending");
  Require(OfGraph(wanted, buffer), "a node that is not of the graph");
  Require(!expected || expected->OfBuffer(buffer), "expected of another buffer, or forgotten");
  int64_t different = wanted.empty() ? 0 : 1;
  for (size_t i = 1; i < wanted.size(); ++i) different += wanted[i] != wanted[i - 1];
  Require(different <= buffer.num_slots(), "more nodes than slots");
  return handle.buffer->Reserve(wanted, Milliseconds(seconds), expected);
}

std::optional<Expected> Expect(const BufferHandle& handle, Array1<const int64_t> nodes) {
  Require(OfGraph(Span(nodes), *handle.buffer), "a node that is not of the graph");
  return handle.buffer->Expect(Span(nodes));
}

Claim& Held(Claim& claim) {
  Require(!claim.released(), "the claim is released");
  return claim;
}

using Rows = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Rows in slots that a claim holds, for as long as the array over them lives. Released here and not
// by a finalizer in Python: a Ctrl-C that came while that ran would be lost.
struct HeldRows {
  nb::object claim;
  Rows rows;

  ~HeldRows() {
    Claim& held = nb::cast<Claim&>(claim);
    nb::gil_scoped_release unlocked;
    held.Release();
  }
};

Rows Hold(nb::handle_t<Claim> claim, const Rows& rows) {
  Held(nb::cast<Claim&>(claim));
  auto* held = new HeldRows{nb::borrow(claim), rows};
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<HeldRows*>(p); });
  return {rows.data(), {rows.shape(0), rows.shape(1)}, owner};
}

}  // namespace

void BindRefcount(nb::module_& m) {
  nb::class_<Claim>(m, "Claim")
      .def_prop_ro("slots",
                   [](nb::handle_t<Claim> self) {
                     return ViewOf<int64_t>(nb::cast<Claim&>(self).slots(), self);
                   })
      .def_prop_ro("load_nodes",
                   [](nb::handle_t<Claim> self) {
                     return ViewOf<int64_t>(nb::cast<Claim&>(self).loads().nodes, self);
                   })
      .def_prop_ro("load_slots",
                   [](nb::handle_t<Claim> self) {
                     return ViewOf<int64_t>(nb::cast<Claim&>(self).loads().slots, self);
                   })
      .def_prop_ro("found", &Claim::found)
      .def_prop_ro("shared", &Claim::shared)
      .def(
          "loaded", [](Claim& self) { Held(self).Loaded(); }, Unlocked())
      .def(
          "collect",
          [](Claim& self, double seconds) { return Held(self).Collect(Milliseconds(seconds)); },
          nb::arg("seconds"), Unlocked())
      .def("hold", &Hold, nb::arg("rows").noconvert())
      .def("release", &Claim::Release, Unlocked());
  nb::class_<Expected>(m, "Expected").def("forget", &Expected::Forget, Unlocked());
  nb::class_<RowLayout>(m, "RowLayout")
      .def("__init__", &MakeLayout, nb::kw_only(), nb::arg("base_bytes"), nb::arg("row_bytes"),
           nb::arg("unit_bytes"), nb::arg("gap_bytes"));
  nb::class_<BufferHandle>(m, "SlotBuffer")
      .def("__init__", &MakeBuffer, nb::arg("num_nodes"), nb::arg("num_slots"), nb::kw_only(),
           nb::arg("counted"), nb::arg("layout").none() = nb::none())
      .def("reserve", &Reserve, nb::arg("nodes").noconvert(), nb::arg("seconds"),
           nb::arg("expected").none() = nb::none(), Unlocked())
      .def("expect", &Expect, nb::arg("nodes").noconvert(), Unlocked())
      .def_prop_ro("num_slots", [](const BufferHandle& self) { return self.buffer->num_slots(); })
      .def_prop_ro("num_standby",
                   [](const BufferHandle& self) { return self.buffer->num_standby(); })
      .def_static("most_expected", [] { return cache::Lookahead::kPlaces; })
      .def_static(
          "table_bytes",
          [](int64_t num_nodes, int64_t num_slots, bool counted) {
            return SlotBuffer::Bytes(num_nodes, num_slots, ReuseOf(counted));
          },
          nb::arg("num_nodes"), nb::arg("num_slots"), nb::kw_only(), nb::arg("counted"));
}

}  // namespace outcrop::bindings
