// Edge records cross into Python as plain bytes; their layout is named by two flags.
#pragma once

#include <type_traits>

#include "bindings/bindings.h"
#include "ingest/edge.h"

namespace outcrop::bindings {

using Records = Array1<uint8_t>;

// Calls f with the record type that the flags name: f(std::type_identity<Edge<uint32_t>>()).
template <typename F>
auto WithRecord(bool wide, bool numbered, F f) {
  using ingest::Edge;
  using ingest::NumberedEdge;
  if (wide) {
    return numbered ? f(std::type_identity<NumberedEdge<uint64_t>>())
                    : f(std::type_identity<Edge<uint64_t>>());
  }
  return numbered ? f(std::type_identity<NumberedEdge<uint32_t>>())
                  : f(std::type_identity<Edge<uint32_t>>());
}

// All records that an array has room for, or the first `count` of them.
template <typename Record>
std::span<Record> RecordSpan(const Records& array) {
  Require(reinterpret_cast<uintptr_t>(array.data()) % alignof(Record) == 0,
          "records must be aligned");
  return {reinterpret_cast<Record*>(array.data()), array.size() / sizeof(Record)};
}
template <typename Record>
std::span<Record> RecordSpan(const Records& array, size_t count) {
  const auto all = RecordSpan<Record>(array);
  Require(count <= all.size(), "count is more than the array holds");
  return all.first(count);
}

}  // namespace outcrop::bindings
