// Transfer: one read or write call on its way, from its extents to its last piece.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <variant>

#include "disk/channel.h"
#include "disk/counters.h"
#include "disk/extents.h"
#include "disk/file.h"
#include "disk/plan.h"

namespace outcrop::disk {

// Thread-safe. The caller keeps the memory that the extents name until the transfer is done.
class Transfer {
 public:
  Transfer(std::shared_ptr<const File> file, Op op, ExtentList extents, const PlanOptions& plan,
           std::shared_ptr<LiveCounters> counters);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // For the caller.

  // Blocks until every piece is done; throws what the first failed piece met, as often as called.
  void Wait();
  // The same, but gives up after `patience`: false if it is not done by then.
  bool WaitFor(std::chrono::milliseconds patience);
  bool done() const;
  // Sends nothing more. What is in flight still lands: Wait before freeing the memory.
  void Cancel();

  // For workers.

  // Takes the next pieces; fewer than asked when the plan is at its end or was given up.
  size_t Take(std::span<Piece> pieces);
  bool exhausted() const;  // nothing is left to take
  // Each piece that was taken ends in one of these.
  void Finish();
  void Fail(std::exception_ptr error);

  const File& file() const { return *file_; }
  Op op() const { return op_; }
  const ExtentList& extents() const { return extents_; }

 private:
  bool DoneLocked() const { return exhausted_ && in_flight_ == 0; }
  bool AtEndLocked();

  // Constant after construction
  const std::shared_ptr<const File> file_;
  const Op op_;
  const ExtentList extents_;
  const std::shared_ptr<LiveCounters> counters_;

  mutable std::mutex mutex_;
  std::condition_variable done_;
  // Guarded by mutex_
  std::variant<ReadPlanner, WritePlanner> planner_;
  size_t in_flight_ = 0;
  bool exhausted_ = false;  // the plan has no more pieces, or was given up
  std::exception_ptr error_;
};

}  // namespace outcrop::disk
