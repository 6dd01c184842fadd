#include "threads/pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace outcrop::threads {

Pool::Pool(uint32_t threads) : shared_(std::make_unique<Shared>()) {
  try {
    for (uint32_t i = 1; i < threads; ++i) shared_->threads.emplace_back([this] { Serve(); });
  } catch (const std::system_error&) {
    // No more threads are to be had: those that there are do the work.
  }
}

Pool::~Pool() {
  if (!home_.Here()) {
    [[maybe_unused]] const auto* abandoned = shared_.release();
    return;
  }
  {
    std::lock_guard lock(shared_->mutex);
    shared_->closing = true;
  }
  shared_->changed.notify_all();
  for (std::thread& thread : shared_->threads) thread.join();
}

void Pool::For(size_t count, size_t grain, const Body& body) {
  home_.Check("sampler");
  body_ = &body;
  count_ = count;
  grain_ = std::max<size_t>(grain, 1);
  next_ = 0;
  const bool alone = shared_->threads.empty() || count <= grain_;  // nothing to share: wake nobody
  if (!alone) {
    {
      std::lock_guard lock(shared_->mutex);
      ++shared_->loop;
      shared_->running = shared_->threads.size();
    }
    shared_->changed.notify_all();
  }
  RunChunks();
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [this] { return shared_->running == 0; });
  if (std::exception_ptr error = std::exchange(shared_->error, nullptr))
    std::rethrow_exception(error);
  if (cancelled_) throw Cancelled();
}

void Pool::RunChunks() {
  try {
    while (!cancelled_) {
      const size_t begin = next_.fetch_add(grain_);
      if (begin >= count_) return;
      (*body_)(begin, std::min(begin + grain_, count_));
    }
  } catch (...) {
    next_ = count_;  // the others need not go on
    std::lock_guard lock(shared_->mutex);
    if (!shared_->error) shared_->error = std::current_exception();
  }
}

void Pool::Serve() {
  std::unique_lock lock(shared_->mutex);
  for (uint64_t seen = 0;;) {
    shared_->changed.wait(lock, [&] { return shared_->closing || shared_->loop != seen; });
    if (shared_->closing) return;
    seen = shared_->loop;
    lock.unlock();
    RunChunks();
    lock.lock();
    if (--shared_->running == 0) shared_->changed.notify_all();
  }
}

}  // namespace outcrop::threads
