// What the binding files share. nanobind appears in this folder and nowhere else.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

namespace outcrop::bindings {

namespace nb = nanobind;

// One-dimensional contiguous arrays in memory; const ones are inputs. nanobind would convert them
// (and cut 64 bits to 32) where .noconvert() does not forbid it.
template <typename T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Any contiguous array, taken as bytes.
using Bytes = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

// REQUIRES of the core, checked at the door: a ValueError that says what is wrong.
inline void Require(bool good, const char* what) {
  if (!good) throw nb::value_error(what);
}

template <typename T>
std::span<T> Span(const Array1<T>& array) {
  return {array.data(), array.size()};
}

using Unlocked = nb::call_guard<nb::gil_scoped_release>;

// One function per stage; module.cc calls them all.
void BindErrors(nb::module_& m);
void BindDisk(nb::module_& m);
void BindIngest(nb::module_& m);
void BindSynth(nb::module_& m);
void BindGather(nb::module_& m);
void BindSample(nb::module_& m);
void BindBudget(nb::module_& m);

}  // namespace outcrop::bindings
