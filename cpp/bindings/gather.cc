// Gather: rows from memory, and decoding.
#include <nanobind/stl/optional.h>

#include <optional>

#include "bindings/bindings.h"
#include "gather/decode.h"
#include "gather/rows.h"
#include "gather/slots.h"

namespace outcrop::bindings {
namespace {

using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::span<float> FloatSpan(const Floats& array) { return {array.data(), array.size()}; }

void DecodeInt8(Array1<const uint8_t> rows, Floats out) {
  Require(rows.size() == out.shape(0) * (out.shape(1) + sizeof(float)),
          "rows and out must hold as many rows");
  gather::DecodeInt8({reinterpret_cast<const std::byte*>(rows.data()), rows.size()}, out.shape(1),
                     FloatSpan(out));
}

// Rows of an array, gathered by threads of its own. The array is held by the Python object.
class RowGatherer {
 public:
  RowGatherer(ConstBytes rows, size_t row_bytes, size_t dim, gather::Encoding encoding,
              uint32_t threads)
      : array_(rows), pool_(threads) {
    Require(row_bytes > 0, "rows need at least one byte each");
    rows_ = {static_cast<const std::byte*>(rows.data()), row_bytes, dim, encoding};
    num_rows_ = static_cast<int64_t>(rows.nbytes() / row_bytes);
  }

  void Gather(Array1<const int64_t> ids, Floats out, std::optional<Array1<const int64_t>> places) {
    Require(out.shape(1) == rows_.dim, "out must have the dimension of the rows");
    CheckRange(ids, num_rows_, "a row id beyond the array");
    std::span<const int64_t> place_span;
    if (places) {
      place_span = Span(*places);
      Require(place_span.size() == ids.size(), "places needs one entry per id");
      CheckRange(*places, static_cast<int64_t>(out.shape(0)), "a place beyond out");
    } else {
      Require(out.shape(0) == ids.size(), "out must be [ids, dim]");
    }
    gather::GatherRows(rows_, Span(ids), place_span, pool_, FloatSpan(out));
  }

  void Cancel() { pool_.Cancel(); }

 private:
  static void CheckRange(const Array1<const int64_t>& values, int64_t limit, const char* what) {
    for (int64_t value : Span(values)) Require(value >= 0 && value < limit, what);
  }

  ConstBytes array_;
  gather::RowArray rows_;
  int64_t num_rows_ = 0;
  parallel::Pool pool_;
};

using Rows = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// The rows of a cache as they are stored, [slots, row bytes]; held by the Python object.
class SlotRows {
 public:
  SlotRows(Rows memory, size_t dim, gather::Encoding encoding, uint32_t threads)
      : memory_(memory), pool_(threads) {
    Require(memory.shape(1) > 0, "rows need at least one byte each");
    cached_ = {reinterpret_cast<const std::byte*>(memory.data()), memory.shape(1), dim, encoding};
  }

  void Gather(Array1<const int32_t> slots, Floats out) {
    CheckOut(slots.size(), out);
    const auto num_slots = static_cast<int64_t>(memory_.shape(0));
    for (int32_t slot : Span(slots)) Require(slot < num_slots, "a slot beyond the cache");
    gather::GatherSlots(cached_, Span(slots), pool_, FloatSpan(out));
  }

  void DecodeMisses(Rows stored, Array1<const int32_t> slots, Floats out) {
    CheckOut(slots.size(), out);
    Require(stored.shape(0) == slots.size() && stored.shape(1) == cached_.row_bytes,
            "stored must be [slots, row bytes]");
    gather::RowArray rows = cached_;
    rows.data = reinterpret_cast<const std::byte*>(stored.data());
    gather::DecodeMisses(rows, Span(slots), pool_, FloatSpan(out));
  }

  void Update(Rows source, Array1<const uint32_t> positions, Array1<const uint32_t> slots) {
    Require(source.shape(1) == cached_.row_bytes, "source must be [rows, row bytes]");
    Require(positions.size() == slots.size(), "positions and slots must be of one size");
    for (uint32_t i : Span(positions)) Require(i < source.shape(0), "a position beyond source");
    for (uint32_t slot : Span(slots)) Require(slot < memory_.shape(0), "a slot beyond the cache");
    gather::UpdateSlots(reinterpret_cast<const std::byte*>(source.data()), cached_.row_bytes,
                        Span(positions), Span(slots), pool_,
                        reinterpret_cast<std::byte*>(memory_.data()));
  }

  void Cancel() { pool_.Cancel(); }

 private:
  void CheckOut(size_t rows, const Floats& out) const {
    Require(out.shape(0) == rows && out.shape(1) == cached_.dim, "out must be [slots, dim]");
  }

  Rows memory_;
  gather::RowArray cached_;
  parallel::Pool pool_;
};

}  // namespace

void BindGather(nb::module_& m) {
  m.def(
      "decode_float16",
      [](Array1<const uint16_t> rows, Floats out) {
        Require(rows.size() == out.size(), "rows and out must be of one size");
        gather::DecodeFloat16(Span(rows), FloatSpan(out));
      },
      nb::arg("rows").noconvert(), nb::arg("out").noconvert(), Unlocked());
  m.def(
      "decode_bfloat16",
      [](Array1<const uint16_t> rows, Floats out) {
        Require(rows.size() == out.size(), "rows and out must be of one size");
        gather::DecodeBfloat16(Span(rows), FloatSpan(out));
      },
      nb::arg("rows").noconvert(), nb::arg("out").noconvert(), Unlocked());
  m.def("decode_int8", &DecodeInt8, nb::arg("rows").noconvert(), nb::arg("out").noconvert(),
        Unlocked());
  nb::enum_<gather::Encoding>(m, "Encoding")
      .value("FLOAT32", gather::Encoding::kFloat32)
      .value("FLOAT16", gather::Encoding::kFloat16)
      .value("BFLOAT16", gather::Encoding::kBfloat16)
      .value("INT8", gather::Encoding::kInt8);
  nb::class_<RowGatherer>(m, "RowGatherer")
      .def(nb::init<ConstBytes, size_t, size_t, gather::Encoding, uint32_t>(),
           nb::arg("rows").noconvert(), nb::kw_only(), nb::arg("row_bytes"), nb::arg("dim"),
           nb::arg("encoding"), nb::arg("threads"))
      .def("gather", &RowGatherer::Gather, nb::arg("ids").noconvert(), nb::arg("out").noconvert(),
           nb::arg("places").noconvert() = nb::none(), Unlocked())
      .def("cancel", &RowGatherer::Cancel);
  nb::class_<SlotRows>(m, "SlotRows")
      .def(nb::init<Rows, size_t, gather::Encoding, uint32_t>(), nb::arg("memory").noconvert(),
           nb::kw_only(), nb::arg("dim"), nb::arg("encoding"), nb::arg("threads"))
      .def("gather", &SlotRows::Gather, nb::arg("slots").noconvert(), nb::arg("out").noconvert(),
           Unlocked())
      .def("decode_misses", &SlotRows::DecodeMisses, nb::arg("stored").noconvert(),
           nb::arg("slots").noconvert(), nb::arg("out").noconvert(), Unlocked())
      .def("update", &SlotRows::Update, nb::arg("source").noconvert(),
           nb::arg("positions").noconvert(), nb::arg("slots").noconvert(), Unlocked())
      .def("cancel", &SlotRows::Cancel);
}

}  // namespace outcrop::bindings
