// What the binding files share. nanobind appears in this folder and nowhere else.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace outcrop::bindings {

namespace nb = nanobind;

// One-dimensional contiguous arrays in memory; const ones are inputs. Every array argument is bound
// with .noconvert(): nanobind would else cut 64 bits to 32, or write results into a copy.
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

// A read-only look at what `owner` holds, for as long as it does not change it.
template <typename T>
using View = nb::ndarray<nb::numpy, const T, nb::ndim<1>>;

template <typename T>
View<T> ViewOf(std::span<const T> values, nb::handle owner) {
  static const T nothing{};
  return {values.empty() ? &nothing : values.data(), {values.size()}, owner};
}

inline void CheckNodes(std::span<const int64_t> nodes, int64_t num_nodes) {
  uint64_t largest = 0;  // of all first, which needs no branch; a negative one is large
  for (int64_t node : nodes) largest = std::max(largest, static_cast<uint64_t>(node));
  if (nodes.empty() || largest < static_cast<uint64_t>(num_nodes)) return;
  for (int64_t node : nodes) {
    if (node < 0 || node >= num_nodes) {
      throw nb::value_error(("node ids must be 0 to " + std::to_string(num_nodes - 1) + " (got " +
                             std::to_string(node) + ")")
                                .c_str());
    }
  }
}

// What is put off after the first hop: an entry per node that it found.
inline void CheckDeferred(std::span<const int64_t> nodes_per_hop,
                          const Array1<const uint8_t>& deferred) {
  Require(nodes_per_hop.size() == 2, "the first hop was not sampled, or others were as well");
  Require(deferred.size() == 0 || deferred.size() == static_cast<size_t>(nodes_per_hop[1]),
          "deferred needs an entry per node that the first hop found");
}

using Unlocked = nb::call_guard<nb::gil_scoped_release>;

// One function per stage; module.cc calls them all.
void BindErrors(nb::module_& m);
void BindDisk(nb::module_& m);
void BindIngest(nb::module_& m);
void BindSynth(nb::module_& m);
void BindRows(nb::module_& m);
void BindSample(nb::module_& m);
void BindMemory(nb::module_& m);
void BindCache(nb::module_& m);
void BindRefcount(nb::module_& m);
void BindNeighbor(nb::module_& m);
void BindLayout(nb::module_& m);
void BindSegment(nb::module_& m);
void BindBlocks(nb::module_& m);
void BindParts(nb::module_& m);

}  // namespace outcrop::bindings
