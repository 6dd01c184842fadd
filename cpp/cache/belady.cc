#include "cache/belady.h"

#include <algorithm>

namespace outcrop::cache {
namespace {

// How far ahead a table's entries are asked for: each is a cache miss of its own.
constexpr size_t kAhead = 16;

void PrefetchAhead(const NodeTable& table, std::span<const int64_t> nodes, size_t i) {
  if (i + kAhead < nodes.size()) table.Prefetch(nodes[i + kAhead]);
}

}  // namespace

Belady::Belady(int64_t num_nodes, uint32_t slots, bool goes_on)
    : residents_(num_nodes, slots), num_nodes_(num_nodes), goes_on_(goes_on) {
  link_.resize(slots);
  due_.resize(slots);
}

void Belady::Begin(uint32_t batches, int64_t expected_nodes) {
  residents_.Close();
  batches_ = batches;
  uses_.emplace(num_nodes_, expected_nodes);
  largest_ = 0;
  buckets_.resize(batches + size_t{1});
  wanted_.resize(batches + size_t{1});
  for (size_t k = 0; k <= batches; ++k) {
    buckets_[k] = Bucket();
    wanted_[k] = 0;
  }
}

void Belady::LookBack(uint32_t t, std::span<const int64_t> nodes, std::span<uint32_t> next) {
  NodeTable& uses = *uses_;
  largest_ = std::max(largest_, nodes.size());
  // A node may occur twice in a batch: all are looked up before any is written.
  for (size_t i = 0; i < nodes.size(); ++i) {
    PrefetchAhead(uses, nodes, i);
    const uint32_t found = uses.Get(nodes[i]);
    next[i] = found == NodeTable::kNone ? batches_ : found;
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    PrefetchAhead(uses, nodes, i);
    uses.Set(nodes[i], t);
  }
}

void Belady::TurnAround() {
  const std::span<const int64_t> nodes = residents_.nodes();
  for (uint32_t slot = 0; slot < nodes.size(); ++slot) {
    if (slot + kAhead < nodes.size() && nodes[slot + kAhead] != Residents::kNobody) {
      uses_->Prefetch(nodes[slot + kAhead]);
    }
    if (nodes[slot] == Residents::kNobody) continue;
    const uint32_t first = uses_->Get(nodes[slot]);
    Push(slot, first == NodeTable::kNone ? batches_ : first);
  }
  uses_.reset();
  residents_.Open(static_cast<int64_t>(largest_));  // all rows of a batch may wait in it
}

bool Belady::Fill(uint32_t t, std::span<const int64_t> nodes) {
  NodeTable& table = residents_.table();
  for (size_t i = 0; i < nodes.size() && residents_.free() > 0; ++i) {
    PrefetchAhead(table, nodes, i);
    if (table.Get(nodes[i]) == NodeTable::kNone) Push(residents_.Add(nodes[i]), t);
  }
  return residents_.free() > 0;
}

void Belady::Step(uint32_t t, std::span<const int64_t> nodes, std::span<const uint32_t> next,
                  std::span<int32_t> slots, Changes& changes) {
  changes.Clear();
  moving_.clear();
  Find(t, nodes, next, slots);
  MakeRoom(t);
  for (const uint32_t slot : std::span<const uint32_t>(moving_)) {
    if (Stays(due_[slot])) {
      Push(slot, due_[slot]);
    } else {
      residents_.Remove(slot);
    }
  }
  NodeTable& table = residents_.table();
  for (size_t i = 0; i < nodes.size(); ++i) {
    PrefetchAhead(table, nodes, i);
    if (slots[i] != kMiss || !Wanted(next[i])) continue;
    if (table.Get(nodes[i]) != kWaiting) continue;  // its twin in this batch was here before
    if (Stays(next[i])) {
      const uint32_t slot = residents_.Add(nodes[i]);
      Push(slot, next[i]);
      changes.Add(i, slot);
    } else {
      table.Erase(nodes[i]);
    }
  }
}

// Looks the batch up, and counts by next use who would like to stay or to enter.
void Belady::Find(uint32_t t, std::span<const int64_t> nodes, std::span<const uint32_t> next,
                  std::span<int32_t> slots) {
  for (size_t k = t + size_t{1}; k <= batches_; ++k) wanted_[k] = 0;
  NodeTable& table = residents_.table();
  for (size_t i = 0; i < nodes.size(); ++i) {
    PrefetchAhead(table, nodes, i);
    const uint32_t slot = table.Get(nodes[i]);
    if (slot == NodeTable::kNone || slot == kWaiting) {
      slots[i] = kMiss;
      if (slot == kWaiting || !Wanted(next[i])) continue;
      table.Set(nodes[i], kWaiting);
      ++wanted_[next[i]];
      continue;
    }
    slots[i] = static_cast<int32_t>(slot);
    if (due_[slot] != t) continue;  // its twin was here before
    due_[slot] = next[i];
    ++wanted_[next[i]];
    moving_.push_back(slot);
  }
  buckets_[t] = Bucket();  // all of them are in moving_ now
}

// Finds the limit, and evicts what is beyond it.
void Belady::MakeRoom(uint32_t t) {
  room_ = residents_.slots();
  limit_ = t + 1;
  while (limit_ <= batches_) {
    const uint64_t all = uint64_t{buckets_[limit_].count} + wanted_[limit_];
    if (all > room_) break;
    room_ -= static_cast<uint32_t>(all);
    ++limit_;
  }
  if (limit_ > batches_) return;
  for (size_t k = limit_ + size_t{1}; k <= batches_; ++k) {
    EvictFrom(buckets_[k], buckets_[k].count);
  }
  // Those that are there already cost no copy, so they come first.
  Bucket& last = buckets_[limit_];
  if (last.count > room_) EvictFrom(last, last.count - room_);
  room_ -= last.count;
}

bool Belady::Stays(uint32_t due) {
  if (due != limit_) return due < limit_;
  if (room_ == 0) return false;
  --room_;
  return true;
}

void Belady::Push(uint32_t slot, uint32_t due) {
  Bucket& bucket = buckets_[due];
  due_[slot] = due;
  link_[slot] = bucket.first;
  bucket.first = slot;
  ++bucket.count;
}

void Belady::EvictFrom(Bucket& bucket, uint32_t count) {
  for (; count > 0; --count) {
    const uint32_t slot = bucket.first;
    bucket.first = link_[slot];
    --bucket.count;
    residents_.Remove(slot);
  }
}

void Belady::End() { residents_.Close(); }

void Belady::Clear() {
  uses_.reset();
  residents_.Close();
  residents_.Clear();
}

}  // namespace outcrop::cache
