#include "cache/lru.h"

namespace outcrop::cache {

Lru::Lru(int64_t num_nodes, uint32_t slots) : residents_(num_nodes, slots) {
  before_.resize(slots);
  after_.resize(slots);
  used_.resize(slots);
  residents_.Open();
}

void Lru::Step(std::span<const int64_t> nodes, std::span<int32_t> slots, Changes& changes) {
  changes.Clear();
  ++step_;
  NodeTable& table = residents_.table();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const uint32_t slot = table.Get(nodes[i]);
    slots[i] = slot == NodeTable::kNone ? kMiss : static_cast<int32_t>(slot);
    if (slots[i] != kMiss) Touch(slot);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (slots[i] != kMiss || table.Get(nodes[i]) != NodeTable::kNone) continue;
    if (residents_.free() == 0) {
      if (oldest_ == kEnd || used_[oldest_] == step_) return;  // all belong to this batch
      const uint32_t slot = oldest_;
      Unlink(slot);
      residents_.Remove(slot);
    }
    const uint32_t slot = residents_.Add(nodes[i]);
    used_[slot] = step_;
    Append(slot);
    changes.Add(i, slot);
  }
}

void Lru::Touch(uint32_t slot) {
  used_[slot] = step_;
  Unlink(slot);
  Append(slot);
}

void Lru::Unlink(uint32_t slot) {
  (before_[slot] == kEnd ? oldest_ : after_[before_[slot]]) = after_[slot];
  (after_[slot] == kEnd ? newest_ : before_[after_[slot]]) = before_[slot];
}

void Lru::Append(uint32_t slot) {
  before_[slot] = newest_;
  after_[slot] = kEnd;
  (newest_ == kEnd ? oldest_ : after_[newest_]) = slot;
  newest_ = slot;
}

void Lru::Clear() {
  residents_.Close();
  residents_.Clear();
  residents_.Open();
  oldest_ = newest_ = kEnd;
}

void Lru::Restore(std::span<const int64_t> nodes) {
  residents_.Close();  // its table and that of the check need not exist at once
  try {
    residents_.Restore(nodes);
  } catch (const std::invalid_argument&) {
    residents_.Open();
    throw;
  }
  residents_.Open();
  oldest_ = newest_ = kEnd;
  for (uint32_t slot = 0; slot < residents_.slots(); ++slot) {
    if (residents_.nodes()[slot] == Residents::kNobody) continue;
    used_[slot] = step_;
    Append(slot);
  }
}

}  // namespace outcrop::cache
