#include "layout/fennel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <utility>

#include "random/philox.h"

namespace outcrop::layout {
namespace {

constexpr double kFull = std::numeric_limits<double>::infinity();
// Entries ahead for which the part is asked from memory.
constexpr ptrdiff_t kAhead = 16;

std::vector<uint64_t> DrawTies(size_t parts, uint64_t seed) {
  std::vector<uint64_t> ties(parts);
  for (size_t part = 0; part < parts; ++part) {
    ties[part] = random::Low64(random::Draw(seed, random::Purpose::kPartTie, part, 0));
  }
  return ties;
}

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

}  // namespace

void MarkSeeds(std::span<const int64_t> ids, std::span<uint32_t> assignment) {
  for (const int64_t id : ids) assignment[static_cast<size_t>(id)] |= kSeed;
}

void UnmarkSeeds(std::span<uint32_t> assignment) {
  for (uint32_t& value : assignment) value &= ~kSeed;
}

void MakeGroups(std::span<uint32_t> assignment) {
  for (uint32_t& value : assignment) value |= kUnassigned;
}

// Heap

PartHeap::PartHeap(std::span<const uint32_t> first_part, const std::vector<uint64_t>& ties)
    : ties_(ties),
      first_(first_part.begin(), first_part.end()),
      group_(ties.size()),
      keys_(ties.size(), 0.0),
      heap_(ties.size()),
      place_(ties.size()) {
  for (uint32_t part = 0; part < heap_.size(); ++part) heap_[part] = part;
  for (uint32_t group = 0; group + 1 < first_.size(); ++group) {
    const auto begin = heap_.begin() + first_[group], end = heap_.begin() + first_[group + 1];
    std::sort(begin, end, [this](uint32_t a, uint32_t b) { return Before(a, b); });
    for (uint32_t at = first_[group]; at < first_[group + 1]; ++at) {
      Put(at, heap_[at]);
      group_[heap_[at]] = group;
    }
  }
}

void PartHeap::Set(uint32_t part, double key) {
  keys_[part] = key;
  const size_t first = first_[group_[part]], end = first_[group_[part] + 1];
  size_t at = place_[part];
  while (at > first) {  // up
    const size_t above = first + (at - first - 1) / 2;
    if (!Before(part, heap_[above])) break;
    Put(at, heap_[above]);
    at = above;
  }
  while (true) {  // down
    size_t below = first + 2 * (at - first) + 1;
    if (below >= end) break;
    if (below + 1 < end && Before(heap_[below + 1], heap_[below])) ++below;
    if (!Before(heap_[below], part)) break;
    Put(at, heap_[below]);
    at = below;
  }
  Put(at, part);
}

// Filters

uint64_t PartFilters::Bits(uint64_t nodes) {
  constexpr double kLn2 = std::numbers::ln2;
  const double bits =
      std::ceil(static_cast<double>(nodes) * -std::log(kFalsePositives) / kLn2 / kLn2);
  return std::max<uint64_t>(64, static_cast<uint64_t>(bits));
}

PartFilters::PartFilters(std::span<const uint64_t> most) {
  first_bit_.push_back(0);
  for (const uint64_t nodes : most) first_bit_.push_back(first_bit_.back() + Bits(nodes));
  words_.resize((first_bit_.back() + 63) / 64);
}

PartFilters::Hash::Hash(uint64_t node) : start(Mix(node)), step(Mix(~node) | 1) {}

void PartFilters::Add(uint32_t part, Hash hash) {
  const uint64_t first = first_bit_[part], bits = first_bit_[part + 1] - first;
  for (uint32_t i = 0; i < kHashes; ++i) {
    const uint64_t bit = first + (hash.start + i * hash.step) % bits;
    words_[bit / 64] |= uint64_t{1} << (bit % 64);
  }
}

bool PartFilters::Has(uint32_t part, Hash hash) const {
  const uint64_t first = first_bit_[part], bits = first_bit_[part + 1] - first;
  for (uint32_t i = 0; i < kHashes; ++i) {
    const uint64_t bit = first + (hash.start + i * hash.step) % bits;
    if (((words_[bit / 64] >> (bit % 64)) & 1) == 0) return false;
  }
  return true;
}

// Fennel

template <typename Index>
Fennel<Index>::Fennel(std::span<uint32_t> assignment, FennelLevel level)
    : assignment_(assignment),
      level_(std::move(level)),
      group_of_(level_.most.size()),
      ties_(DrawTies(level_.most.size(), level_.seed)),
      nodes_(level_.most.size()),
      seeds_(level_.most.size()),
      by_nodes_(level_.first_part, ties_),
      by_seeds_(level_.first_part, ties_),
      stream_(static_cast<int64_t>(assignment.size())),
      counts_(level_.most.size()) {
  for (uint32_t group = 0; group + 1 < level_.first_part.size(); ++group) {
    std::fill(group_of_.begin() + level_.first_part[group],
              group_of_.begin() + level_.first_part[group + 1], group);
  }
  for (const uint32_t value : assignment_) {
    if ((value & kUnassigned) != 0) continue;
    ++nodes_[value & kPartMask];
    seeds_[value & kPartMask] += (value & kSeed) != 0 ? 1 : 0;
  }
  for (uint32_t part = 0; part < nodes_.size(); ++part) SetKeys(part);
  if (level_.bloom) filters_.emplace(level_.most);
}

template <typename Index>
void Fennel<Index>::Restart() {
  if (filters_) throw std::invalid_argument("nothing can be removed from Bloom filters: one pass");
  stream_ = ListStream(static_cast<int64_t>(assignment_.size()));
}

template <typename Index>
ListStream::Taken Fennel<Index>::Add(std::span<const int64_t> offsets,
                                     std::span<const Index> entries) {
  const auto begin = [this](int64_t node) { Begin(node); };
  const auto end = [this](int64_t node) { End(node); };
  if (filters_) {
    const auto some = [this](std::span<const Index> list) { CountByFilters(list); };
    return stream_.Walk(offsets, entries, begin, some, end);
  }
  // Beyond the list at hand, too: most are shorter than memory is far.
  const Index* const ahead_end = entries.data() + entries.size();
  const auto some = [this, ahead_end](std::span<const Index> list) { Count(list, ahead_end); };
  return stream_.Walk(offsets, entries, begin, some, end);
}

template <typename Index>
void Fennel<Index>::Begin(int64_t node) {
  uint32_t& value = assignment_[static_cast<size_t>(node)];
  is_seed_ = (value & kSeed) != 0;
  group_ = value & kPartMask;
  if ((value & kUnassigned) == 0) {
    const uint32_t part = group_;
    group_ = group_of_[part];
    Change(part, ~uint64_t{0});
    value = kUnassigned | (value & kSeed) | group_;
  }
}

template <typename Index>
void Fennel<Index>::Count(std::span<const Index> neighbors, const Index* ahead_end) {
  const uint32_t first = level_.first_part[group_];
  const uint32_t count = level_.first_part[group_ + 1] - first;
  for (const Index& neighbor : neighbors) {
    if (ahead_end - &neighbor > kAhead) {
      const auto ahead = static_cast<uint64_t>(*(&neighbor + kAhead));
      if (ahead < assignment_.size()) __builtin_prefetch(&assignment_[ahead]);  // not checked yet
    }
    const uint32_t value = assignment_[static_cast<size_t>(neighbor)];
    if ((value & kUnassigned) != 0) continue;
    const uint32_t part = value & kPartMask;
    if (part - first < count) Meet(part);
  }
}

template <typename Index>
void Fennel<Index>::CountByFilters(std::span<const Index> neighbors) {
  const uint32_t first = level_.first_part[group_], end = level_.first_part[group_ + 1];
  for (const Index neighbor : neighbors) {
    const PartFilters::Hash hash(static_cast<uint64_t>(neighbor));
    for (uint32_t part = first; part < end; ++part) {
      if (filters_->Has(part, hash)) Meet(part);
    }
  }
}

template <typename Index>
void Fennel<Index>::End(int64_t node) {
  const uint32_t part = Best();
  for (const uint32_t met : touched_) counts_[met] = 0;
  touched_.clear();
  Change(part, 1);
  if (filters_) filters_->Add(part, PartFilters::Hash(static_cast<uint64_t>(node)));
  assignment_[static_cast<size_t>(node)] = part | (is_seed_ ? kSeed : 0);
}

template <typename Index>
uint32_t Fennel<Index>::Best() const {
  const PartHeap* heap = is_seed_ ? &by_seeds_ : &by_nodes_;
  uint32_t best = heap->Lowest(group_);
  if (heap->key(best) == kFull) {  // of training nodes, all that have room
    heap = &by_nodes_;
    best = heap->Lowest(group_);
  }
  double score = counts_[best] - heap->key(best);
  for (const uint32_t part : touched_) {
    const double other = counts_[part] - heap->key(part);
    if (other > score || (other == score && ties_[part] < ties_[best])) {
      best = part;
      score = other;
    }
  }
  return best;
}

template <typename Index>
void Fennel<Index>::Change(uint32_t part, uint64_t by) {
  nodes_[part] += by;
  if (is_seed_) seeds_[part] += by;
  SetKeys(part);
}

template <typename Index>
double Fennel<Index>::Penalty(uint32_t part, uint64_t count, double target) const {
  if (count == 0 || target <= 0) return 0;
  const double degree = level_.degree[group_of_[part]];
  return level_.gamma * degree * std::pow(static_cast<double>(count) / target, level_.gamma - 1);
}

template <typename Index>
void Fennel<Index>::SetKeys(uint32_t part) {
  const bool full = nodes_[part] >= level_.most[part];
  const double key = full ? kFull : Penalty(part, nodes_[part], level_.target[part]);
  by_nodes_.Set(part, key);
  const bool full_of_seeds = full || seeds_[part] >= level_.most_seeds[part];
  by_seeds_.Set(
      part, full_of_seeds ? kFull : key + Penalty(part, seeds_[part], level_.seed_target[part]));
}

template class Fennel<int32_t>;
template class Fennel<int64_t>;

}  // namespace outcrop::layout
