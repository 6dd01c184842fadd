// Gather: rows as they are stored -> rows of batches, and decoding.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <type_traits>

#include "bindings/bindings.h"
#include "rows/copier.h"
#include "rows/decode.h"

namespace outcrop::bindings {
namespace {

using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::span<float> FloatSpan(const Floats& array) { return {array.data(), array.size()}; }

void DecodeInt8(Array1<const uint8_t> rows, Floats out) {
  Require(rows.size() == out.shape(0) * (out.shape(1) + sizeof(float)),
          "rows and out must hold as many rows");
  rows::DecodeInt8({reinterpret_cast<const std::byte*>(rows.data()), rows.size()}, out.shape(1),
                   FloatSpan(out));
}

using Ids = Array1<const int64_t>;
using Rows = Array1<const uint32_t>;
// Rows as they are stored, [rows, row bytes].
using Stored = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::span<const std::byte> ByteSpan(const ConstBytes& array) {
  return {static_cast<const std::byte*>(array.data()), array.nbytes()};
}

// Whether all are below the bound; those below zero count as below it only where `negative`.
template <typename T>
bool AllBelow(std::span<const T> values, size_t bound, bool negative = false) {
  return std::all_of(values.begin(), values.end(), [=](T value) {
    if constexpr (std::is_signed_v<T>) {
      if (value < 0) return negative;
    }
    return static_cast<uint64_t>(value) < bound;
  });
}

class CopierHandle {
 public:
  CopierHandle(size_t row_bytes, size_t dim, rows::Encoding encoding, uint32_t threads)
      : core_({row_bytes, dim, encoding}, threads) {
    Require(row_bytes > 0, "rows need at least one byte each");
  }

  template <typename Slot, typename Place>
  void GatherRows(ConstBytes rows, Array1<const Slot> slots, Floats out,
                  std::optional<Array1<const Place>> places) {
    Require(AllBelow(Span(slots), rows.nbytes() / core_.format().row_bytes, true),
            "a slot beyond the rows");
    std::span<const Place> to;
    if (places) {
      to = Span(*places);
      Require(to.size() == slots.size(), "places needs one entry per slot");
      CheckPlaces(to, out);
    } else {
      Require(out.shape(0) == slots.size() && out.shape(1) == core_.format().dim,
              "out must be [slots, dim]");
    }
    core_.Gather(ByteSpan(rows).data(), Span(slots), to, FloatSpan(out));
  }

  void GatherAt(ConstBytes data, Ids offsets, Rows places, Floats out) {
    Require(offsets.size() == places.size(), "as many places as offsets");
    const auto row_bytes = core_.format().row_bytes;
    const size_t begins = data.nbytes() < row_bytes ? 0 : data.nbytes() - row_bytes + 1;
    Require(AllBelow(Span(offsets), begins), "a row beyond the data");
    CheckPlaces(Span(places), out);
    core_.GatherAt(ByteSpan(data), Span(offsets), Span(places), FloatSpan(out));
  }

  void Copy(Rows from, Rows to, Floats out) const {
    Require(from.size() == to.size(), "as many rows to as from");
    CheckPlaces(Span(from), out);
    CheckPlaces(Span(to), out);
    core_.Copy(Span(from), Span(to), FloatSpan(out));
  }

  void Update(Stored source, Rows positions, Stored rows, Rows slots) {
    const auto row_bytes = core_.format().row_bytes;
    Require(source.shape(1) == row_bytes && rows.shape(1) == row_bytes,
            "source and rows must be [rows, row bytes]");
    Require(positions.size() == slots.size(), "positions and slots must be of one size");
    Require(AllBelow(Span(positions), source.shape(0)), "a position beyond source");
    Require(AllBelow(Span(slots), rows.shape(0)), "a slot beyond the rows");
    core_.Update(reinterpret_cast<const std::byte*>(source.data()), Span(positions), Span(slots),
                 reinterpret_cast<std::byte*>(rows.data()));
  }

  void Cancel() { core_.Cancel(); }

  template <typename Place>
  void CheckPlaces(std::span<const Place> places, const Floats& out) const {
    Require(out.shape(1) == core_.format().dim, "out must be [rows, dim]");
    Require(AllBelow(places, out.shape(0)), "a place beyond out");
  }

  rows::Copier& core() { return core_; }

 private:
  rows::Copier core_;
};

// Holds what it refers to.
struct RowStreamHandle {
  RowStreamHandle(CopierHandle& by, Rows rows, Floats x)
      : places(rows), out(x), core(by.core(), Span(rows), FloatSpan(x)) {
    by.CheckPlaces(Span(rows), x);
  }
  Rows places;
  Floats out;
  rows::RowStream core;
};

template <typename Slot, typename Place>
void DefinePlace(nb::class_<CopierHandle>& copier) {
  copier.def("gather", &CopierHandle::GatherRows<Slot, Place>, nb::arg("rows").noconvert(),
             nb::arg("slots").noconvert(), nb::arg("out").noconvert(),
             nb::arg("places").noconvert() = nb::none(), Unlocked());
}

}  // namespace

void BindRows(nb::module_& m) {
  m.def(
      "decode_float16",
      [](Array1<const uint16_t> rows, Floats out) {
        Require(rows.size() == out.size(), "rows and out must be of one size");
        rows::DecodeFloat16(Span(rows), FloatSpan(out));
      },
      nb::arg("rows").noconvert(), nb::arg("out").noconvert(), Unlocked());
  m.def(
      "decode_bfloat16",
      [](Array1<const uint16_t> rows, Floats out) {
        Require(rows.size() == out.size(), "rows and out must be of one size");
        rows::DecodeBfloat16(Span(rows), FloatSpan(out));
      },
      nb::arg("rows").noconvert(), nb::arg("out").noconvert(), Unlocked());
  m.def("decode_int8", &DecodeInt8, nb::arg("rows").noconvert(), nb::arg("out").noconvert(),
        Unlocked());
  nb::enum_<rows::Encoding>(m, "Encoding")
      .value("FLOAT32", rows::Encoding::kFloat32)
      .value("FLOAT16", rows::Encoding::kFloat16)
      .value("BFLOAT16", rows::Encoding::kBfloat16)
      .value("INT8", rows::Encoding::kInt8);
  nb::class_<CopierHandle> copier(m, "Copier");
  copier
      .def(nb::init<size_t, size_t, rows::Encoding, uint32_t>(), nb::kw_only(),
           nb::arg("row_bytes"), nb::arg("dim"), nb::arg("encoding"), nb::arg("threads"))
      .def("gather_at", &CopierHandle::GatherAt, nb::arg("data").noconvert(),
           nb::arg("offsets").noconvert(), nb::arg("places").noconvert(),
           nb::arg("out").noconvert(), Unlocked())
      .def("copy", &CopierHandle::Copy, nb::arg("from_rows").noconvert(),
           nb::arg("to_rows").noconvert(), nb::arg("out").noconvert(), Unlocked())
      .def("update", &CopierHandle::Update, nb::arg("source").noconvert(),
           nb::arg("positions").noconvert(), nb::arg("rows").noconvert(),
           nb::arg("slots").noconvert(), Unlocked())
      .def(
          "stream",
          [](CopierHandle& self, Rows places, Floats out) {
            return new RowStreamHandle(self, places, out);
          },
          nb::arg("places").noconvert(), nb::arg("out").noconvert(), nb::keep_alive<0, 1>(),
          nb::rv_policy::take_ownership)
      .def("cancel", &CopierHandle::Cancel);
  DefinePlace<int32_t, int64_t>(copier);
  DefinePlace<int32_t, uint32_t>(copier);
  DefinePlace<int64_t, int64_t>(copier);
  DefinePlace<int64_t, uint32_t>(copier);
  DefinePlace<uint32_t, int64_t>(copier);
  DefinePlace<uint32_t, uint32_t>(copier);
  nb::class_<RowStreamHandle>(m, "RowStream")
      .def(
          "feed", [](RowStreamHandle& self, ConstBytes block) { self.core.Feed(ByteSpan(block)); },
          nb::arg("block").noconvert(), Unlocked());
}

}  // namespace outcrop::bindings
