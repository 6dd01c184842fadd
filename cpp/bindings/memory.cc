// Budget: the pool of slabs that batches live in.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "bindings/bindings.h"
#include "memory/slabs.h"

namespace outcrop::bindings {
namespace {

using memory::Beyond;
using memory::Slab;
using memory::SlabPool;

using ByteArray = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// The pool as Python holds it. Slabs share the pool itself, never this object: they may be freed
// by threads without the GIL.
struct PoolHandle {
  std::shared_ptr<SlabPool> pool;
};

// None where the slabs did not fit in time.
std::optional<std::vector<ByteArray>> Take(const PoolHandle& handle,
                                           const std::vector<uint64_t>& sizes, double seconds,
                                           bool beyond_limit) {
  std::vector<Slab> slabs;
  {
    nb::gil_scoped_release unlocked;
    const auto wait = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    slabs = handle.pool->Take(sizes, wait, beyond_limit ? Beyond::kYes : Beyond::kNo);
  }
  if (slabs.size() != sizes.size()) return std::nullopt;
  std::vector<ByteArray> arrays;
  for (size_t i = 0; i < sizes.size(); ++i) {
    auto* slab = new Slab(std::move(slabs[i]));
    nb::capsule owner(slab, [](void* p) noexcept { delete static_cast<Slab*>(p); });
    arrays.emplace_back(reinterpret_cast<uint8_t*>(slab->data()),
                        std::initializer_list<size_t>{static_cast<size_t>(sizes[i])}, owner);
  }
  return arrays;
}

}  // namespace

void BindMemory(nb::module_& m) {
  nb::class_<PoolHandle>(m, "SlabPool")
      .def(
          "__init__",
          [](PoolHandle* self, uint64_t limit_bytes) {
            new (self) PoolHandle{std::make_shared<SlabPool>(limit_bytes)};
          },
          nb::arg("limit_bytes"))
      .def("take", &Take, nb::arg("sizes"), nb::arg("seconds"), nb::kw_only(),
           nb::arg("beyond_limit") = false)
      .def_prop_ro("limit_bytes", [](const PoolHandle& self) { return self.pool->limit_bytes(); })
      .def_prop_ro("held_bytes", [](const PoolHandle& self) { return self.pool->held_bytes(); })
      .def_prop_ro("peak_bytes", [](const PoolHandle& self) { return self.pool->peak_bytes(); })
      .def_static("charged_bytes", &SlabPool::ChargedBytes, nb::arg("bytes"));
}

}  // namespace outcrop::bindings
