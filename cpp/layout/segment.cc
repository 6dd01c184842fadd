#include "layout/segment.h"

#include <algorithm>
#include <cstring>

namespace outcrop::layout {
namespace {

constexpr size_t kAhead = 16;  // nodes whose places in a table are asked for before they are used
constexpr uint32_t kHashBits = 16;

// SplitMix64: fixed, so that the same batches give the same order everywhere.
uint64_t Mixed(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

uint64_t HashOf(uint32_t hash, uint32_t batch) { return Mixed((uint64_t{hash} << 32) | batch); }

// The place of a word in the reflected Gray code, in which neighbours differ in one bit: where the
// set of batches changes from one row to the next, it changes by less than in order of numbers.
uint64_t GrayRank(uint64_t word) {
  for (int shift = 1; shift < 64; shift *= 2) word ^= word >> shift;
  return word;
}

}  // namespace

Segment::Segment(int64_t num_nodes, int64_t expected, Order order, uint32_t hashes)
    : order_(order), hashes_(hashes), places_(num_nodes, expected) {}

uint64_t Segment::Bytes(int64_t num_nodes, int64_t distinct) {
  // Buffers grow by half.
  return cache::NodeTable::Bytes(num_nodes, distinct) +
         static_cast<uint64_t>(distinct) * sizeof(Row) * 3 / 2;
}

uint64_t Segment::KeyOf(uint32_t batch) const {
  uint64_t key = 0;
  switch (order_) {
    case Order::kId:
      return 0;
    case Order::kSet:
      return uint64_t{1} << (kMostInSet - 1 - batch);
    case Order::kMinHash:
      for (uint32_t h = 0; h < kMostHashes; ++h) {
        key = (key << kHashBits) | (h < hashes_ ? HashOf(h, batch) >> (64 - kHashBits) : 0);
      }
      return key;
    case Order::kPrinted:
      key = ~uint64_t{0};
      for (uint32_t h = 0; h < hashes_; ++h) key = std::min(key, HashOf(h, batch));
      return key;
  }
  return key;
}

uint64_t Segment::Merged(uint64_t a, uint64_t b) const {
  if (order_ == Order::kSet) return a | b;
  if (order_ != Order::kMinHash) return std::min(a, b);
  constexpr uint64_t kMask = (uint64_t{1} << kHashBits) - 1;
  uint64_t key = 0;
  for (uint32_t shift = 0; shift < 64; shift += kHashBits) {
    key |= std::min(a & (kMask << shift), b & (kMask << shift));
  }
  return key;
}

void Segment::Add(uint32_t batch, std::span<const int64_t> nodes) {
  const uint64_t key = KeyOf(batch);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) places_.Prefetch(nodes[i + kAhead]);
    const uint32_t place = places_.Get(nodes[i]);
    if (place == cache::NodeTable::kNone) {
      places_.Set(nodes[i], static_cast<uint32_t>(rows_.size()));
      rows_.push_back({key, (static_cast<uint64_t>(nodes[i]) << 24) | 1});
    } else {
      Row& row = rows_[place];
      row.key = Merged(row.key, key);
      ++row.node_and_count;
    }
  }
}

void Segment::Count(std::span<uint64_t> having) const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    ++having[std::min<size_t>(rows_[i].count(), having.size() - 1)];
  }
}

void Segment::CountOf(std::span<const int64_t> nodes, std::span<uint64_t> having) const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) places_.Prefetch(nodes[i + kAhead]);
    const uint32_t place = places_.Get(nodes[i]);
    if (place == cache::NodeTable::kNone) continue;
    ++having[std::min<size_t>(rows_[place].count(), having.size() - 1)];
  }
}

size_t Segment::Share(uint32_t above) {
  size_t shared = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].count() > above) {
      rows_[shared] = rows_[i];
      if (order_ == Order::kSet) rows_[shared].key = GrayRank(rows_[i].key);
      ++shared;
    } else {
      places_.Erase(rows_[i].node());
    }
  }
  rows_.resize(shared);
  std::sort(rows_.data(), rows_.data() + shared, [](const Row& a, const Row& b) {
    return a.key != b.key ? a.key < b.key : a.node_and_count < b.node_and_count;
  });
  for (size_t i = 0; i < shared; ++i) {
    places_.Set(rows_[i].node(), static_cast<uint32_t>(i));
  }
  return shared;
}

void Segment::Split(std::span<const int64_t> nodes) {
  own_.clear();
  found_.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) places_.Prefetch(nodes[i + kAhead]);
    const uint32_t position = places_.Get(nodes[i]);
    if (position == cache::NodeTable::kNone) {
      own_.push_back(static_cast<uint32_t>(i));
    } else {
      found_.push_back((uint64_t{position} << 32) | i);
    }
  }
  std::sort(found_.data(), found_.data() + found_.size());
  shared_.resize(found_.size());
  positions_.resize(found_.size());
  for (size_t i = 0; i < found_.size(); ++i) {
    shared_[i] = static_cast<uint32_t>(found_[i]);
    positions_[i] = static_cast<uint32_t>(found_[i] >> 32);
  }
}

void Segment::Bucket(size_t begin, size_t end, std::span<int64_t> nodes,
                     std::span<uint32_t> places) {
  nodes_.resize(end - begin);
  for (size_t i = begin; i < end; ++i) nodes_[i - begin] = rows_[i].node();
  size_t next = 0;
  for (const cache::Entry& entry : sorter_.Sort(nodes_)) {
    nodes[next] = static_cast<int64_t>(entry.node);
    places[next++] = entry.row;
  }
}

void Segment::Clear() {
  for (size_t i = 0; i < rows_.size(); ++i) places_.Erase(rows_[i].node());
  rows_.clear();
}

ReusePairs::ReusePairs(int64_t num_nodes, int64_t expected, uint32_t units)
    : units_(units), last_(num_nodes, expected) {
  pairs_.resize(size_t{units} * units);
  std::memset(pairs_.data(), 0, pairs_.size() * sizeof(uint64_t));
}

void ReusePairs::Add(uint32_t unit, std::span<const int64_t> nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) last_.Prefetch(nodes[i + kAhead]);
    const uint32_t before = last_.Get(nodes[i]);
    if (before != cache::NodeTable::kNone) ++pairs_[size_t{before} * units_ + unit];
    if (before != unit) last_.Set(nodes[i], unit);
  }
}

}  // namespace outcrop::layout
