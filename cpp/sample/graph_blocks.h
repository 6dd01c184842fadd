// Graph blocks: the block layout of a topology, some of its blocks in memory, swept in their order.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "disk/engine.h"
#include "disk/file.h"
#include "disk/memory.h"
#include "threads/pool.h"

namespace outcrop::sample {

// A set of blocks: a bit each.
class BlockSet {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  explicit BlockSet(uint64_t blocks) : words_((blocks + 63) / 64) {}

  bool Has(uint64_t block) const { return words_[block / 64] >> block % 64 & 1; }
  void Add(uint64_t block) {
    count_ += !Has(block);
    words_[block / 64] |= uint64_t{1} << block % 64;
  }
  void Remove(uint64_t block) {
    count_ -= Has(block);
    words_[block / 64] &= ~(uint64_t{1} << block % 64);
  }
  void Clear() {
    words_.assign(words_.size(), 0);
    count_ = 0;
  }
  // The first one from `from` on; kNone: there is none.
  uint64_t Next(uint64_t from) const;
  uint64_t count() const { return count_; }
  uint64_t capacity_bytes() const { return words_.capacity() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> words_;
  uint64_t count_ = 0;
};

// Thread-safe: one sweep at a time, others wait for it.
class GraphBlocks {
 public:
  // What it is opened with. `last_nodes`, the index, and the engine outlive it.
  struct Source {
    std::span<const int64_t> last_nodes;
    int64_t num_nodes = 0, num_edges = 0;
    uint64_t block_bytes = 0;
    uint32_t entry_bytes = 4;
    disk::Engine* engine = nullptr;
    std::shared_ptr<const disk::File> file;
    uint64_t base = 0;  // where the blocks begin in the file
  };

  // Keeps up to `buffer_blocks` blocks. Throws std::invalid_argument where sizes contradict each
  // other. REQUIRES: buffer_blocks >= 2.
  GraphBlocks(const Source& source, uint64_t buffer_blocks);

  int64_t num_nodes() const { return source_.num_nodes; }
  int64_t num_edges() const { return source_.num_edges; }
  uint64_t num_blocks() const { return source_.last_nodes.size(); }
  uint64_t block_bytes() const { return source_.block_bytes; }
  uint32_t entry_bytes() const { return source_.entry_bytes; }
  disk::Engine& engine() const { return *source_.engine; }
  const std::string& path() const { return source_.file->path(); }

  // The block in which a node's list begins. REQUIRES: it is not before block `from`.
  uint64_t BlockOf(int64_t node, uint64_t from = 0) const;

  // Index, buffer, and what tells where blocks are.
  uint64_t memory_bytes() const;

  // Since it was made: wanted blocks that were in the buffer, and those that were read.
  struct Counts {
    uint64_t found = 0, read = 0;
  };
  Counts counts() const;

 private:
  friend class BlockSweep;

  // One transfer of several blocks, and what it looks into meanwhile.
  struct Group {
    std::vector<int64_t> offsets, lengths, places;
    std::shared_ptr<disk::Transfer> transfer;
  };
  enum class State : uint8_t { kFree, kLoading, kLoaded };
  struct Slot {
    State state = State::kFree;
    bool ahead = false;  // read for this sweep, which has not come to it yet
    uint64_t block = 0;
    uint64_t used = 0;             // when: the largest was used last
    std::shared_ptr<Group> group;  // that brings it
  };

  std::byte* Memory(size_t slot) const { return memory_.data() + slot * source_.block_bytes; }

  // Constant after construction
  const Source source_;
  const disk::AlignedMemory memory_;

  std::timed_mutex sweeping_;
  // Guarded by sweeping_
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, size_t> where_;  // block -> slot
  uint64_t clock_ = 0;

  mutable std::mutex counts_mutex_;
  Counts counts_;  // Guarded by counts_mutex_
};

// Blocks in ascending order, each once, the next ones being read while one is used. A block that is
// in the buffer and wanted stays until the sweep comes to it; of the others the one that was used
// least recently makes room.
// Not thread-safe. Has the buffer alone until it ends; then nothing is in flight any more.
class BlockSweep {
 public:
  // Waits for other sweeps; throws threads::Cancelled. Empties `wanted`, which outlives it.
  BlockSweep(GraphBlocks& blocks, BlockSet& wanted, const threads::Pool& pool);
  ~BlockSweep();
  BlockSweep(const BlockSweep&) = delete;
  BlockSweep& operator=(const BlockSweep&) = delete;

  // REQUIRES: it comes after the block that Next gave last.
  void Want(uint64_t block);

  // The next wanted block, checked, until the next call; null: there is none. Throws disk::IoError,
  // disk::Cancelled, threads::Cancelled, layout::BadBlock.
  const std::byte* Next(uint64_t* number);

 private:
  static constexpr size_t kNoSlot = ~size_t{0};
  // A slot whose block is not wanted any more, unless it was used again since.
  struct Victim {
    size_t slot;
    uint64_t used;
  };

  void ReadAhead(bool at_once);
  void Start(const std::vector<size_t>& slots);
  size_t MakeRoom(uint64_t block);
  void Land(size_t slot);
  void Forget(size_t slot);

  GraphBlocks& blocks_;
  BlockSet& wanted_;
  const threads::Pool& pool_;
  const std::unique_lock<std::timed_mutex> lease_;
  const uint64_t most_ahead_;
  std::vector<size_t> free_;
  std::deque<Victim> victims_;  // least recently used first
  std::set<uint64_t> kept_;     // blocks that were in the buffer, and are wanted
  uint64_t ahead_ = 0;          // blocks that are read, or being read, and not yet given
  uint64_t from_ = 0;           // blocks before it are not wanted, or in the buffer
  size_t current_ = kNoSlot;    // of the block that was given last
  GraphBlocks::Counts counts_;
};

}  // namespace outcrop::sample
