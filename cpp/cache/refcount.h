// Slots with reference counts: which node's row is where, who uses it, and what may be reused.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "cache/lookahead.h"
#include "cache/node_table.h"
#include "cache/prefetch.h"
#include "cache/use_counts.h"
#include "memory/buffer.h"
#include "threads/home.h"

namespace outcrop::cache {

class SlotBuffer;

// Slots for the rows of some nodes, held until it is released or destroyed.
//
// What it has to load itself is in loads(); the rest is there, or is being loaded by another claim.
// Rows that others will want may be among the loads, where they come with the same reads.
// Loads that are never declared Loaded are given up with the claim: the claims that wait for them
// take them over. Not thread-safe: one thread at a time.
class Claim {
 public:
  struct Loads {
    memory::Buffer<int64_t> nodes, slots;  // nodes ascending
  };

  Claim(Claim&&) = default;
  Claim& operator=(Claim&&) = delete;
  ~Claim() { Release(); }

  // The slot of each node that was asked for.
  std::span<const int64_t> slots() const { return slots_; }
  const Loads& loads() const { return loads_; }
  // How many nodes that were asked for, duplicates counted, had rows that were there, or that
  // another claim (or this one, for an equal node) was about to load.
  uint64_t found() const { return found_; }
  uint64_t shared() const { return shared_; }

  // The rows of loads() are in their slots; it is empty then.
  void Loaded();

  // Waits for the rows that others load: true once all rows are in their slots. False when the time
  // is up, or when there are loads() again, which were given up. REQUIRES: loads() is empty.
  bool Collect(std::chrono::milliseconds wait);

  // The slots may be reused from now on.
  void Release();
  bool released() const { return !buffer_; }

 private:
  friend class SlotBuffer;
  explicit Claim(std::shared_ptr<SlotBuffer> buffer) : buffer_(std::move(buffer)) {}
  void DropPrefetched();  // REQUIRES: the buffer's mutex_ is held.

  threads::Home home_;
  std::shared_ptr<SlotBuffer> buffer_;  // null once released
  memory::Buffer<int64_t> slots_;
  memory::Buffer<int64_t> prefetched_;  // slots of loads that it does not want itself
  Loads loads_;
  Loads awaited_;  // of other claims
  uint64_t found_ = 0, shared_ = 0;
};

// What a batch will want, until it is forgotten or destroyed. Several Reserves may use it at once,
// before it is forgotten.
class Expected {
 public:
  Expected(Expected&& other) = default;
  Expected& operator=(Expected&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    std::swap(place_, other.place_);
    return *this;
  }
  ~Expected() { Forget(); }

  // Nothing of it is expected any more.
  void Forget();
  bool OfBuffer(const SlotBuffer& buffer) const { return buffer_.get() == &buffer; }

 private:
  friend class SlotBuffer;
  Expected(std::shared_ptr<SlotBuffer> buffer, uint32_t place)
      : buffer_(std::move(buffer)), place_(place) {}

  std::shared_ptr<SlotBuffer> buffer_;  // null once forgotten
  uint32_t place_;
};

// Which slot that nobody uses is taken for another node: that of the least recently used one, or of
// those that are used least often, the least recently used. In the latter case, slots of nodes that
// are expected go last, and of these the ones that are expected latest go first.
enum class Reuse { kLeastRecent, kLeastOften };

// Knows ids and slots, never rows. A slot that nobody uses stays findable under its node until it
// is taken for another one. Thread-safe.
class SlotBuffer : public std::enable_shared_from_this<SlotBuffer> {
 public:
  // With a layout of rows, what is read for a claim brings rows that are expected, too.
  // REQUIRES: 0 < num_slots < 2^31; a layout's row_bytes > 0.
  SlotBuffer(int64_t num_nodes, int64_t num_slots, Reuse reuse,
             std::optional<RowLayout> layout = std::nullopt);

  static uint64_t Bytes(int64_t num_nodes, int64_t num_slots, Reuse reuse);

  // Slots for all nodes at once, or for none: waits until others have released enough, nothing when
  // the time is up. Whoever waits here holds no slots, so claims cannot wait for each other in a
  // circle if their holders load before they collect. REQUIRES: nodes ascending, duplicates
  // allowed; no more different ones than slots.
  // Nodes of an expected batch are not expected for it from then on.
  std::optional<Claim> Reserve(std::span<const int64_t> nodes, std::chrono::milliseconds wait,
                               const Expected* expected = nullptr);

  // These nodes will be asked for, in any number of Reserves, after those of all others that are
  // expected. Nothing where too many are, or where uses are not counted: this is no promise.
  std::optional<Expected> Expect(std::span<const int64_t> nodes);

  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_slots() const { return num_slots_; }
  // Slots that nobody uses.
  int64_t num_standby() const;

 private:
  friend class Claim;
  friend class Expected;

  enum class State : uint8_t { kEmpty, kLoading, kValid };
  static constexpr int64_t kNobody = -1;
  static constexpr uint32_t kNone = NodeTable::kNone;

  struct Slot {
    int64_t node;
    uint32_t users;
    uint32_t previous, next;  // on standby: towards the least, the most recently used
    State state;
    uint8_t uses;  // of late; 0 where they are not counted
  };

  // REQUIRES of all of these: mutex_ is held.
  bool Fits(std::span<const int64_t> nodes) const;
  void Take(std::span<const int64_t> nodes, const Expected* expected, Claim& claim);
  uint32_t Use(int64_t node, const Expected* expected, Claim& claim);
  void TakePrefetched(size_t most, Claim& claim);
  uint32_t LeastWanted() const;               // of the slots on standby: there is one
  void TakeFor(int64_t node, uint32_t slot);  // a slot on standby, of another node
  void Drop(uint32_t slot);
  void Shelve(uint32_t slot);  // on standby, with its row
  void Unlink(uint32_t slot);
  void LinkAfter(uint32_t place, uint32_t slot);
  void JoinLists(uint32_t from, uint32_t to);  // by their heads: behind what is there

  // The head of the circular list of slots on standby whose node was used so often, or is expected
  // by the batch at a place.
  uint32_t Head(uint32_t uses) const { return static_cast<uint32_t>(num_slots_) + uses; }
  uint32_t ExpectedHead(uint32_t place) const { return Head(UseCounts::kMost + 1 + place); }

  // Constant after construction
  const int64_t num_nodes_, num_slots_;
  const std::optional<RowLayout> layout_;

  mutable std::mutex mutex_;
  std::condition_variable released_, loaded_;
  // Guarded by mutex_
  NodeTable table_;
  memory::Buffer<Slot> slots_;  // and, after them, the heads of the lists
  std::optional<UseCounts> counts_;
  std::optional<Lookahead> ahead_;  // with counts_
  int64_t standby_ = 0;
  uint64_t releases_ = 0;
};

}  // namespace outcrop::cache
