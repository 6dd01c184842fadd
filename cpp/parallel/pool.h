// A pool of threads for one loop at a time: [0, count) in chunks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace outcrop::parallel {

// A loop that was given up because Cancel was called.
class Cancelled : public std::runtime_error {
 public:
  Cancelled() : std::runtime_error("cancelled") {}
};

// One caller at a time, apart from Cancel, which any thread may call.
class Pool {
 public:
  using Body = std::function<void(size_t begin, size_t end)>;

  // The caller of For is one of the threads; with 1 no other is made. Fewer where the system
  // refuses.
  explicit Pool(uint32_t threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // body(begin, end) for chunks of `grain` items, in any order, on all threads. Rethrows what a
  // body threw; throws Cancelled if Cancel was called, now or ever before.
  void For(size_t count, size_t grain, const Body& body);

  // For gives up after the chunks that have begun; so does every later one.
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  uint32_t threads() const { return static_cast<uint32_t>(threads_.size()) + 1; }

 private:
  void Serve();
  void RunChunks();

  std::atomic<bool> cancelled_{false};
  std::atomic<size_t> next_{0};

  // Written between loops, read by all threads within one
  const Body* body_ = nullptr;
  size_t count_ = 0, grain_ = 1;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_
  uint64_t loop_ = 0;
  size_t running_ = 0;
  bool closing_ = false;
  std::exception_ptr error_;

  std::vector<std::thread> threads_;
};

}  // namespace outcrop::parallel
