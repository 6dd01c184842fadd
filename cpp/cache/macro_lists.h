// The lists of a macro batch in memory: node -> its list. Others take their place as a run goes
// on, so beside the lists there is a table of their nodes alone.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <span>

namespace outcrop::cache {

// None until memory is attached. Thread-safe.
class MacroLists {
 public:
  explicit MacroLists(uint32_t entry_bytes) : entry_bytes_(entry_bytes) {}

  struct Slot {
    static constexpr int64_t kFree = -1;
    int64_t node;
    uint64_t begin;  // of its list, in the entries
  };

  // What the table of so many nodes takes: three of four slots are taken, at most.
  static uint64_t TableBytes(uint64_t nodes) { return Slots(nodes) * sizeof(Slot); }

  // Serves lists from now on: that of nodes[i] is the entries [starts[i], starts[i + 1]). Throws
  // std::invalid_argument where sizes contradict each other. REQUIRES: `table` and `entries` are
  // changed by nobody else, and live until Detach.
  void Attach(std::span<std::byte> table, std::span<const int64_t> nodes,
              std::span<const int64_t> starts, std::span<const std::byte> entries);
  // Waits for readers; there are no lists any more.
  void Detach();

  uint32_t entry_bytes() const { return entry_bytes_; }

  // The lists as they are as long as this object lives. Threads may share it.
  class Reader {
   public:
    static constexpr uint64_t kNone = ~uint64_t{0};

    explicit Reader(const MacroLists& lists)
        : lock_(lists.mutex_),
          table_(lists.table_),
          entries_(lists.entries_),
          num_entries_(lists.num_entries_) {}

    bool empty() const { return table_.empty(); }
    uint64_t num_entries() const { return num_entries_; }
    const std::byte* entries() const { return entries_; }

    void Prefetch(int64_t node) const { __builtin_prefetch(&table_[Home(node, table_.size())]); }
    // Where in the entries its list begins, kNone where there is none. REQUIRES: !empty().
    uint64_t Begin(int64_t node) const {
      for (uint64_t at = Home(node, table_.size());; at = (at + 1) & (table_.size() - 1)) {
        if (table_[at].node == node) return table_[at].begin;
        if (table_[at].node == Slot::kFree) return kNone;
      }
    }

   private:
    std::shared_lock<std::shared_mutex> lock_;
    std::span<const Slot> table_;
    const std::byte* entries_;
    uint64_t num_entries_;
  };

  // What was drawn from them: nodes, and entries of them.
  struct Counts {
    std::atomic<uint64_t> hit_nodes{0}, hit_entries{0};
  };
  Counts& counts() { return counts_; }

 private:
  static uint64_t Slots(uint64_t nodes) {
    return nodes == 0 ? 0 : std::bit_ceil(nodes + nodes / 3 + 1);
  }
  static uint64_t Home(int64_t node, uint64_t slots) {
    const uint64_t mixed = static_cast<uint64_t>(node) * 0x9E3779B97F4A7C15u;
    return (mixed >> 32) & (slots - 1);
  }

  const uint32_t entry_bytes_;

  mutable std::shared_mutex mutex_;
  // Guarded by mutex_
  std::span<const Slot> table_;
  const std::byte* entries_ = nullptr;
  uint64_t num_entries_ = 0;

  Counts counts_;
};

}  // namespace outcrop::cache
