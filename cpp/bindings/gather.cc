// Gather: decoding rows.
#include "bindings/bindings.h"
#include "gather/decode.h"

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

}  // namespace

void BindGather(nb::module_& m) {
  m.def(
      "decode_float16",
      [](Array1<const uint16_t> rows, Floats out) {
        Require(rows.size() == out.size(), "rows and out must be of one size");
        gather::DecodeFloat16(Span(rows), FloatSpan(out));
      },
      nb::arg("rows"), nb::arg("out"), Unlocked());
  m.def(
      "decode_bfloat16",
      [](Array1<const uint16_t> rows, Floats out) {
        Require(rows.size() == out.size(), "rows and out must be of one size");
        gather::DecodeBfloat16(Span(rows), FloatSpan(out));
      },
      nb::arg("rows"), nb::arg("out"), Unlocked());
  m.def("decode_int8", &DecodeInt8, nb::arg("rows"), nb::arg("out"), Unlocked());
}

}  // namespace outcrop::bindings
