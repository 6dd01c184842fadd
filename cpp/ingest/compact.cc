#include "ingest/compact.h"

#include <bit>

#include "ingest/edge.h"

namespace outcrop::ingest {
namespace {

constexpr uint64_t DivUp(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

IdSet::IdSet(uint64_t capacity)
    : capacity_(capacity),
      num_words_(DivUp(capacity, 64 * kBlockWords) * kBlockWords),
      words_(num_words_ * sizeof(uint64_t)),
      ranks_(num_words_ / kBlockWords * sizeof(uint64_t)) {}

bool IdSet::Add(std::span<const int64_t> ids) {
  for (int64_t id : ids) {
    const auto bit = static_cast<uint64_t>(id);
    if (bit >= capacity_) return false;
    words()[bit / 64] |= uint64_t{1} << (bit % 64);
  }
  return true;
}

size_t IdSet::AddNew(std::span<const int64_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto bit = static_cast<uint64_t>(ids[i]);
    if (bit >= capacity_) return i;
    const uint64_t mask = uint64_t{1} << (bit % 64);
    if ((words()[bit / 64] & mask) != 0) return i;
    words()[bit / 64] |= mask;
  }
  return ids.size();
}

uint64_t IdSet::Seal() {
  uint64_t count = 0;
  for (uint64_t word = 0; word < num_words_; ++word) {
    if (word % kBlockWords == 0) ranks()[word / kBlockWords] = count;
    count += static_cast<uint64_t>(std::popcount(words()[word]));
  }
  return count;
}

uint64_t IdSet::Rank(uint64_t id) const {
  const uint64_t word = id / 64;
  uint64_t rank = ranks()[word / kBlockWords];
  for (uint64_t w = word / kBlockWords * kBlockWords; w < word; ++w) {
    rank += static_cast<uint64_t>(std::popcount(words()[w]));
  }
  const uint64_t below = (uint64_t{1} << (id % 64)) - 1;
  return rank + static_cast<uint64_t>(std::popcount(words()[word] & below));
}

template <typename Record>
void IdSet::Relabel(std::span<Record> records) const {
  using Id = typename Record::IdType;
  for (Record& record : records) {
    record.target = static_cast<Id>(Rank(record.target));
    record.source = static_cast<Id>(Rank(record.source));
  }
}

size_t IdSet::List(uint64_t* from, std::span<int64_t> out) const {
  size_t written = 0;
  while (*from < capacity_ && written < out.size()) {
    const uint64_t rest = words()[*from / 64] >> (*from % 64);
    if (rest == 0) {
      *from = (*from / 64 + 1) * 64;
      continue;
    }
    *from += static_cast<uint64_t>(std::countr_zero(rest));
    out[written++] = static_cast<int64_t>((*from)++);
  }
  return written;
}

template void IdSet::Relabel(std::span<Edge<uint64_t>>) const;
template void IdSet::Relabel(std::span<NumberedEdge<uint64_t>>) const;

}  // namespace outcrop::ingest
