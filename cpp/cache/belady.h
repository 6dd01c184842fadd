// Belady: batches that are known ahead -> the cache contents that cost the fewest reads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cache/changes.h"
#include "cache/residents.h"
#include "memory/buffer.h"

namespace outcrop::cache {

// After each batch the cache keeps, of what it held and of the batch's rows, those whose next use
// is nearest. Rows that nobody uses again stay, and enter if the cache goes on after the
// superbatch, as long as there is room.
//
// A superbatch is planned in two passes: LookBack over its batches from the last to the first,
// then Step from the first to the last, with the next uses that LookBack gave. What is in the cache
// at the end is there when the next superbatch begins. A pass before them, Mark, tells which nodes
// are touched, where tables of these are to be as small as can be. Time is linear in the accesses,
// memory in slots and touched nodes. Not thread-safe.
class Belady {
 public:
  // A next use that is none: the node was seen before in the same batch.
  static constexpr uint32_t kTwin = 0xFFFFFFFE;

  // `goes_on`: superbatches follow that find what this one leaves. REQUIRES: slots < 2^31.
  Belady(int64_t num_nodes, uint32_t slots, bool goes_on);

  // What a slot takes, without the tables of the two passes, which never exist at once.
  static constexpr uint64_t kSlotBytes = Residents::kSlotBytes + sizeof(uint32_t);

  // A batch of the superbatch that begins next; where one is marked, all have to be. Returns how
  // many different nodes were marked so far. REQUIRES: End, Clear or Restore came last, or Mark.
  uint32_t Mark(std::span<const int64_t> nodes);

  // A superbatch of `batches` batches that touch about `expected_nodes` different nodes; not read
  // where they are marked. REQUIRES: batches < 2^32 - 2.
  void Begin(uint32_t batches, int64_t expected_nodes);

  // For batch t, from the last on: when each of its nodes is used next; `batches` for never. Where
  // a node occurs again in the batch, kTwin: its first occurrence speaks for it.
  void LookBack(uint32_t t, std::span<const int64_t> nodes, std::span<uint32_t> next);

  // Between the passes: what is cached learns when it is used first.
  void TurnAround();

  // Before the first Step: fills free slots with nodes of batch t; for t = 0, 1 ... until it is
  // false. What it takes has to be read before batch 0; see nodes().
  bool Fill(uint32_t t, std::span<const int64_t> nodes);

  // Batch t: the slot of each node, or kMiss; and who enters. A slot in `changes` may be one that
  // this very batch still reads: gather first, then change.
  // REQUIRES: `next` as LookBack gave it; slots.size() == nodes.size().
  void Step(uint32_t t, std::span<const int64_t> nodes, std::span<const uint32_t> next,
            std::span<int32_t> slots, Changes& changes);

  // After the last Step: gives the tables' memory back.
  void End();

  // Forgets the contents.
  void Clear();

  // As after a superbatch that ended with these contents, which are as nodes() gives them. For a
  // moment it takes a table of its nodes. Throws std::invalid_argument, and keeps the contents,
  // where there are not as many as slots, or a node is not in the graph, or in two slots.
  void Restore(std::span<const int64_t> nodes);

  // What is in each slot; -1: nothing.
  std::span<const int64_t> nodes() const { return residents_.nodes(); }

 private:
  static constexpr uint32_t kNoSlot = 0xFFFFFFFF;

  struct Bucket {
    uint32_t first = kNoSlot;
    uint32_t count = 0;
  };

  void Find(uint32_t t, std::span<const int64_t> nodes, std::span<const uint32_t> next,
            std::span<int32_t> slots);
  void MakeRoom(uint32_t t);
  void EvictFrom(Bucket& bucket, uint32_t count);
  // Whether a row stays; asked once for each, those that are cached first.
  bool Stays(uint32_t due) {
    if (due != limit_) return due < limit_;
    if (room_ == 0) return false;
    --room_;
    return true;
  }
  void Push(uint32_t slot, uint32_t due) {
    Bucket& bucket = buckets_[due];
    link_[slot] = bucket.first;
    bucket.first = slot;
    ++bucket.count;
  }
  // Whether a row that is not cached would like to be.
  bool Wanted(uint32_t next) const { return next != kTwin && (goes_on_ || next < batches_); }

  Residents residents_;
  const int64_t num_nodes_;
  const bool goes_on_;
  uint32_t batches_ = 0;
  std::optional<TouchedNodes> touched_;  // nodes of the superbatch, where they were marked
  std::optional<NodeTable> uses_;        // first pass: the batch that uses a node next
  memory::Buffer<Bucket> buckets_;       // by next use: cached slots, as lists through link_
  memory::Buffer<uint32_t> link_;        // by slot
  memory::Buffer<uint32_t> wanted_;      // rows of the current batch, by next use
  memory::Buffer<uint32_t> leaving_;     // slots that the current batch empties
  uint32_t limit_ = 0;                   // of the current batch: who is used before it stays,
  uint32_t room_ = 0;                    // and of those that are used in it, so many
};

}  // namespace outcrop::cache
