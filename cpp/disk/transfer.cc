#include "disk/transfer.h"

#include <utility>

#include "disk/error.h"

namespace outcrop::disk {
namespace {

std::variant<ReadPlanner, WritePlanner> MakePlanner(Op op, const ExtentList& extents,
                                                    const PlanOptions& plan) {
  if (op == Op::kRead) return ReadPlanner(extents, plan);
  return WritePlanner(extents, plan);
}

}  // namespace

Transfer::Transfer(std::shared_ptr<const File> file, Op op, ExtentList extents,
                   const PlanOptions& plan, std::shared_ptr<LiveCounters> counters)
    : file_(std::move(file)),
      op_(op),
      extents_(std::move(extents)),
      counters_(std::move(counters)),
      planner_(MakePlanner(op, extents_, plan)) {
  exhausted_ = AtEndLocked();
}

bool Transfer::AtEndLocked() {
  return std::visit([](auto& planner) { return planner.AtEnd(); }, planner_);
}

void Transfer::Wait() {
  while (!WaitFor(std::chrono::hours(1))) {
  }
}

bool Transfer::WaitFor(std::chrono::milliseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  const bool done = done_.wait_for(lock, patience, [this] { return DoneLocked(); });
  counters_->wait_ns += static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  if (done && error_) std::rethrow_exception(error_);
  return done;
}

bool Transfer::done() const {
  const std::lock_guard lock(mutex_);
  return DoneLocked();
}

void Transfer::Cancel() {
  const std::lock_guard lock(mutex_);
  if (exhausted_) return;
  exhausted_ = true;
  if (!error_) error_ = std::make_exception_ptr(Cancelled(file_->path() + ": cancelled"));
  if (in_flight_ == 0) done_.notify_all();
}

size_t Transfer::Take(std::span<Piece> pieces) {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  while (!exhausted_ && count < pieces.size()) {
    pieces[count++] = std::visit([](auto& planner) { return planner.Next(); }, planner_);
    exhausted_ = AtEndLocked();
  }
  in_flight_ += count;
  return count;
}

bool Transfer::exhausted() const {
  const std::lock_guard lock(mutex_);
  return exhausted_;
}

void Transfer::Finish() {
  const std::lock_guard lock(mutex_);
  --in_flight_;
  if (DoneLocked()) done_.notify_all();
}

void Transfer::Fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  exhausted_ = true;
  --in_flight_;
  if (DoneLocked()) done_.notify_all();
}

}  // namespace outcrop::disk
