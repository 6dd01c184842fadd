#include "ingest/merge.h"

#include <utility>

namespace outcrop::ingest {

template <typename Record>
void Merger<Record>::SetWindow(size_t run, std::span<const Record> window, bool last) {
  runs_[run] = {window.data(), window.data() + window.size(), last};
}

template <typename Record>
bool Merger<Record>::RunBefore(size_t a, size_t b) const {
  const Record& left = *runs_[a].next;
  const Record& right = *runs_[b].next;
  if (Before(left, right, order_)) return true;
  if (Before(right, left, order_)) return false;
  return a < b;
}

template <typename Record>
void Merger<Record>::SiftDown(size_t at) {
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= heap_.size()) return;
    if (child + 1 < heap_.size() && RunBefore(heap_[child + 1], heap_[child])) ++child;
    if (!RunBefore(heap_[child], heap_[at])) return;
    std::swap(heap_[child], heap_[at]);
    at = child;
  }
}

template <typename Record>
size_t Merger<Record>::Merge(std::span<Record> out) {
  if (!built_) {
    for (size_t run = 0; run < runs_.size(); ++run) {
      if (!WindowEmpty(run)) heap_.push_back(run);
    }
    for (size_t at = heap_.size() / 2; at-- > 0;) SiftDown(at);
    built_ = true;
  }
  size_t written = 0;
  while (written < out.size() && !heap_.empty()) {
    const size_t run = heap_[0];
    Run& top = runs_[run];
    const Record& record = *top.next++;
    if (order_ == Order::kTarget || !any_ || !SameEdge(record, latest_)) {
      out[written++] = latest_ = record;
      any_ = true;
    }
    if (top.next != top.end) {
      SiftDown(0);
    } else if (top.last) {
      heap_[0] = heap_.back();
      heap_.pop_back();
      SiftDown(0);
    } else {
      // The caller refills this window; until then its place in the heap is unknown.
      built_ = false;
      heap_.clear();
      break;
    }
  }
  return written;
}

template class Merger<Edge<uint32_t>>;
template class Merger<Edge<uint64_t>>;
template class Merger<NumberedEdge<uint32_t>>;
template class Merger<NumberedEdge<uint64_t>>;

}  // namespace outcrop::ingest
