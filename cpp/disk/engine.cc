#include "disk/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "disk/align.h"
#include "disk/error.h"
#include "disk/memory.h"
#include "disk/worker.h"
#include "threads/home.h"

namespace outcrop::disk {
namespace {

void Check(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

EngineOptions Checked(EngineOptions options) {
  Check(options.workers >= 1 && options.workers <= 1024, "workers must be 1 to 1024");
  Check(options.queue_depth >= 1 && options.queue_depth <= 4096, "queue_depth must be 1 to 4096");
  Check(options.bounce_bytes >= 16 * kPageBytes, "bounce_bytes must be at least 64 KiB");
  Check(options.unit_bytes == 0 || IsPowerOfTwo(options.unit_bytes),
        "unit_bytes must be a power of two");
  Check(options.unit_bytes <= options.bounce_bytes / 4,
        "unit_bytes must be at most a quarter of bounce_bytes");
  Check(options.max_request_bytes >= kStraightBytes &&
            options.max_request_bytes % kPageBytes == 0 && options.max_request_bytes <= (1U << 30),
        "max_request_bytes must be a multiple of 4096 from 64 KiB to 1 GiB");
  Check(options.unit_bytes == 0 || options.max_request_bytes % options.unit_bytes == 0,
        "max_request_bytes must be a multiple of unit_bytes");
  options.bounce_bytes = RoundUp(options.bounce_bytes, kPageBytes);
  return options;
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : options_(Checked(options)),
      counters_(std::make_shared<LiveCounters>()),
      faults_(options.faults ? std::make_shared<FaultState>(*options.faults) : nullptr),
      process_(getpid()),
      shared_(std::make_unique<Shared>()) {
  try {
    StartWorkers();
  } catch (const std::system_error& error) {
    const size_t started = shared_->threads.size();
    Close();
    throw IoError(Stage::kOpen, error.code().value(), "disk engine", 0, 0,
                  "only " + std::to_string(started) + " of " + std::to_string(options_.workers) +
                      " threads could be started: " + error.code().message());
  } catch (...) {
    Close();
    throw;
  }
}

void Engine::StartWorkers() {
  // A ring belongs to the thread that made it, so each worker is made in its own thread.
  std::vector<std::future<void>> ready;
  for (uint32_t i = 0; i < options_.workers; ++i) {
    std::promise<void> promise;
    ready.push_back(promise.get_future());
    shared_->threads.emplace_back([this, promise = std::move(promise)]() mutable {
      std::optional<Worker> worker;
      try {
        worker.emplace(this);
      } catch (...) {
        return promise.set_exception(std::current_exception());
      }
      promise.set_value();
      worker->Run();
    });
  }
  for (auto& future : ready) future.get();
}

Engine::~Engine() {
  Close();
  // In a forked child there are no threads to join, and locks may be held by threads that are gone.
  if (getpid() != process_) [[maybe_unused]]
    const auto* abandoned = shared_.release();
}

std::shared_ptr<Transfer> Engine::Read(std::shared_ptr<const File> file, ExtentList extents) {
  const uint64_t size = file->size();
  if (extents.end() > size) {
    size_t furthest = 0;
    while (extents[furthest].end() != extents.end()) ++furthest;
    throw IoError(Stage::kRead, ENODATA, file->path(), extents[furthest].offset,
                  extents[furthest].length,
                  "beyond the end of the file, which has " + std::to_string(size) + " B");
  }
  return Enqueue(std::move(file), Op::kRead, std::move(extents));
}

std::shared_ptr<Transfer> Engine::Write(std::shared_ptr<const File> file, ExtentList extents) {
  if (!file->writable()) throw std::invalid_argument(file->path() + " is open for reading only");
  if (extents.Overlaps()) throw std::invalid_argument("extents to write overlap");
  return Enqueue(std::move(file), Op::kWrite, std::move(extents));
}

PlanOptions Engine::PlanFor(const File& file, Op op) const {
  PlanOptions plan;
  plan.memory_align = file.memory_align();
  plan.max_request_bytes = options_.max_request_bytes;
  plan.gap_bytes = options_.gap_bytes;
  plan.merge = options_.merge;
  if (op == Op::kRead) {
    plan.unit_bytes = std::max(file.offset_align(), options_.unit_bytes);
  } else {
    plan.unit_bytes = file.direct() ? static_cast<uint32_t>(kPageBytes) : 1;
  }
  // A quarter of the arena, so that a long piece does not have to wait for all others to land.
  const uint64_t quarter =
      RoundDown(options_.bounce_bytes / 4, std::max<uint64_t>(plan.unit_bytes, kPageBytes));
  plan.max_bounce_bytes =
      static_cast<uint32_t>(std::min<uint64_t>(quarter, options_.max_request_bytes));
  return plan;
}

std::shared_ptr<Transfer> Engine::Enqueue(std::shared_ptr<const File> file, Op op,
                                          ExtentList extents) {
  if (getpid() != process_) {
    throw threads::Forked("this engine belongs to another process: make one after fork");
  }
  PlanOptions plan = PlanFor(*file, op);
  // A drive must not write where a forked child has a copy of the page: see AlignedMemory.
  if (op == Op::kRead && file->direct() && extents.size() != 0) {
    plan.straight = AlignedMemory::Keeps(extents[0].memory);
  }
  if (op == Op::kRead) counters_->bytes_wanted += extents.total_bytes();
  const size_t most_pieces = extents.size() + extents.total_bytes() / plan.max_bounce_bytes;
  auto transfer =
      std::make_shared<Transfer>(std::move(file), op, std::move(extents), plan, counters_);
  if (transfer->done()) return transfer;  // nothing to move
  const std::lock_guard lock(shared_->mutex);
  if (shared_->closing) throw Cancelled("the engine is closed");
  shared_->queue.push_back(transfer);
  for (size_t wake = std::min(shared_->idle_workers, most_pieces); wake > 0; --wake)
    shared_->work.notify_one();
  return transfer;
}

std::shared_ptr<Transfer> Engine::TakeWork(std::span<Piece> pieces, size_t* count, bool block) {
  std::unique_lock lock(shared_->mutex);
  for (;;) {
    while (!shared_->queue.empty()) {
      auto transfer = std::move(shared_->queue.front());
      shared_->queue.pop_front();
      *count = transfer->Take(pieces);
      if (!transfer->exhausted()) shared_->queue.push_back(transfer);
      if (*count != 0) return transfer;
    }
    if (!block || shared_->closing) return nullptr;
    ++shared_->idle_workers;
    shared_->work.wait(lock, [this] { return shared_->closing || !shared_->queue.empty(); });
    --shared_->idle_workers;
  }
}

void Engine::Close() {
  if (getpid() != process_) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->closing = true;
    for (const auto& transfer : shared_->queue) transfer->Cancel();
    shared_->work.notify_all();
  }
  const std::lock_guard lock(shared_->close_mutex);
  for (auto& thread : shared_->threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace outcrop::disk
