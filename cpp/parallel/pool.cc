#include "parallel/pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace outcrop::parallel {

Pool::Pool(uint32_t threads) {
  try {
    for (uint32_t i = 1; i < threads; ++i) threads_.emplace_back([this] { Serve(); });
  } catch (const std::system_error&) {
    // No more threads are to be had: those that there are do the work.
  }
}

Pool::~Pool() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::For(size_t count, size_t grain, const Body& body) {
  body_ = &body;
  count_ = count;
  grain_ = std::max<size_t>(grain, 1);
  next_ = 0;
  const bool alone = threads_.empty() || count <= grain_;  // nothing to share: wake nobody
  if (!alone) {
    {
      std::lock_guard lock(mutex_);
      ++loop_;
      running_ = threads_.size();
    }
    changed_.notify_all();
  }
  RunChunks();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return running_ == 0; });
  if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
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
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void Pool::Serve() {
  std::unique_lock lock(mutex_);
  for (uint64_t seen = 0;;) {
    changed_.wait(lock, [&] { return closing_ || loop_ != seen; });
    if (closing_) return;
    seen = loop_;
    lock.unlock();
    RunChunks();
    lock.lock();
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace outcrop::parallel
