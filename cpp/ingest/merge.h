// Merge: sorted runs, seen through windows that the caller refills -> one sorted stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ingest/edge.h"

namespace outcrop::ingest {

// Equal records come in the order of their runs, so that the merge of stable runs is stable.
// Not thread-safe.
template <typename Record>
class Merger {
 public:
  Merger(size_t runs, Order order) : order_(order), runs_(runs) {}

  // Gives the next records of a run; `last`: none come after them.
  // REQUIRES: the run's window is empty, which all are at first.
  void SetWindow(size_t run, std::span<const Record> window, bool last);

  bool WindowEmpty(size_t run) const { return runs_[run].next == runs_[run].end; }

  // Writes merged records until `out` is full or a window that has more to come is empty; returns
  // how many. Zero with room left means that all runs are at their end.
  // REQUIRES: every run that is not at its end has records in its window.
  size_t Merge(std::span<Record> out);

 private:
  struct Run {
    const Record* next = nullptr;
    const Record* end = nullptr;
    bool last = false;
  };

  bool RunBefore(size_t a, size_t b) const;
  void SiftDown(size_t at);

  const Order order_;
  std::vector<Run> runs_;
  std::vector<size_t> heap_;  // runs with records, the next one on top
  bool built_ = false;
  bool any_ = false;  // something was written
  Record latest_{};   // the last that was
};

}  // namespace outcrop::ingest
