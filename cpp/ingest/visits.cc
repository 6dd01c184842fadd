#include "ingest/visits.h"

#include <algorithm>

namespace outcrop::ingest {

Visits::Visits(uint64_t num_nodes)
    : num_nodes_(num_nodes),
      is_wide_(num_nodes > uint64_t{1} << 32),
      bits_((num_nodes + 63) / 64 * sizeof(uint64_t)),
      queue_(num_nodes * (is_wide_ ? sizeof(uint64_t) : sizeof(uint32_t))) {}

void Visits::Append(uint64_t id) {
  bits()[id / 64] |= uint64_t{1} << (id % 64);
  if (is_wide_) {
    wide()[count_++] = id;
  } else {
    narrow()[count_++] = static_cast<uint32_t>(id);
  }
}

template <typename Index>
size_t Visits::Meet(std::span<const Index> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<uint64_t>(ids[i]);  // a negative one is large
    if (id >= num_nodes_) return i;
    if (!Met(id)) Append(id);
  }
  return ids.size();
}

template <typename Index>
Visits::Roots Visits::MeetRoots(std::span<const int64_t> roots, std::span<const int64_t> counts,
                                std::span<const Index> lists) {
  Roots met{0, count_, false};
  while (met.done < roots.size()) {
    const auto root = static_cast<uint64_t>(roots[met.done]);
    const auto list = lists.first(static_cast<size_t>(counts[met.done]));
    if (root >= num_nodes_) return {met.done, count_, true};
    lists = lists.subspan(list.size());
    ++met.done;
    if (Met(root)) continue;
    Append(root);
    met.begin = count_;
    met.bad_id = Meet(list) < list.size();
    if (met.bad_id || count_ > met.begin) return met;
  }
  met.begin = count_;
  return met;
}

size_t Visits::Unmet(std::span<const int64_t> ids, std::span<int64_t> out) const {
  size_t written = 0;
  for (int64_t id : ids) {
    if (!Met(static_cast<uint64_t>(id))) out[written++] = id;
  }
  return written;
}

size_t Visits::List(uint64_t first, std::span<int64_t> out) const {
  if (first >= count_) return 0;
  const auto count = static_cast<size_t>(std::min<uint64_t>(count_ - first, out.size()));
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<int64_t>(is_wide_ ? wide()[first + i] : narrow()[first + i]);
  }
  return count;
}

template size_t Visits::Meet(std::span<const int32_t>);
template size_t Visits::Meet(std::span<const int64_t>);
template Visits::Roots Visits::MeetRoots(std::span<const int64_t>, std::span<const int64_t>,
                                         std::span<const int32_t>);
template Visits::Roots Visits::MeetRoots(std::span<const int64_t>, std::span<const int64_t>,
                                         std::span<const int64_t>);

}  // namespace outcrop::ingest
