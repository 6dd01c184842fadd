// Engine: transfers -> workers -> channels. Everything that Outcrop reads or writes in bulk
// passes here.
//
// Each worker is a thread with a channel of its own: with io_uring one ring that keeps many
// requests in flight; without it, one blocking request at a time, and many workers.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "disk/counters.h"
#include "disk/faults.h"
#include "disk/file.h"
#include "disk/throttle.h"
#include "disk/transfer.h"

namespace outcrop::disk {

enum class EngineKind { kUring, kPool };

struct EngineOptions {
  EngineKind kind = EngineKind::kPool;
  uint32_t workers = 1;
  uint32_t queue_depth = 1;           // per worker; of no meaning to the pool
  uint64_t bounce_bytes = 256 << 10;  // per worker
  uint32_t unit_bytes = 0;            // smallest direct read; 0: the file's own alignment
  uint64_t gap_bytes = 0;
  bool merge = true;  // else neighbours are read one by one
  uint32_t max_request_bytes = 1 << 20;
  std::optional<FaultOptions> faults;
  std::shared_ptr<Throttle> throttle;  // null: the drive's own speed
};

// Thread-safe.
class Engine {
 public:
  // Throws std::invalid_argument for options that cannot work, IoError where the kernel refuses.
  explicit Engine(const EngineOptions& options);
  // Close().
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Both return at once; the transfer tells when it is done. What `extents` refers to, memory
  // included, stays alive until then.
  // Read throws IoError where an extent ends beyond the file; Write throws std::invalid_argument
  // where extents overlap. Extents of a write may lie beyond the end of the file.
  std::shared_ptr<Transfer> Read(std::shared_ptr<const File> file, ExtentList extents);
  std::shared_ptr<Transfer> Write(std::shared_ptr<const File> file, ExtentList extents);

  // Sends nothing more, waits for what is in flight, and ends the workers. Transfers that were not
  // complete throw Cancelled from Wait. Further reads and writes throw Cancelled.
  void Close();

  const EngineOptions& options() const { return options_; }
  Counters counters() const { return counters_->Snapshot(); }
  // Memory that the engine itself holds.
  uint64_t memory_bytes() const { return options_.workers * options_.bounce_bytes; }

 private:
  friend class Worker;

  void StartWorkers();
  PlanOptions PlanFor(const File& file, Op op) const;
  std::shared_ptr<Transfer> Enqueue(std::shared_ptr<const File> file, Op op, ExtentList extents);
  // Takes up to pieces.size() pieces of the transfer whose turn it is; blocks while there is none
  // if `block`. Null: nothing to do, or, after blocking, the engine is closing.
  std::shared_ptr<Transfer> TakeWork(std::span<Piece> pieces, size_t* count, bool block);

  // What workers and callers share; a forked child leaves its copy alone.
  struct Shared {
    std::mutex mutex;
    std::condition_variable work;
    // Guarded by mutex
    std::deque<std::shared_ptr<Transfer>> queue;  // with pieces to take; each has its turn
    size_t idle_workers = 0;
    bool closing = false;

    std::mutex close_mutex;
    std::vector<std::thread> threads;  // Guarded by close_mutex after construction
  };

  // Constant after construction
  const EngineOptions options_;
  const std::shared_ptr<LiveCounters> counters_;
  const std::shared_ptr<FaultState> faults_;
  const pid_t process_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace outcrop::disk
