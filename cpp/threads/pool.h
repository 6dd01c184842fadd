// A pool of threads for one loop at a time: [0, count) in chunks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "threads/home.h"

namespace outcrop::threads {

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
  // body threw; throws Cancelled if Cancel was called, now or ever before, and Forked in a child.
  void For(size_t count, size_t grain, const Body& body);

  // For gives up after the chunks that have begun; so does every later one.
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  uint32_t threads() const { return static_cast<uint32_t>(shared_->threads.size()) + 1; }

 private:
  void Serve();
  void RunChunks();

  // What the threads share; a forked child, which has none of them, leaves its copy alone.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    // Guarded by mutex
    uint64_t loop = 0;
    size_t running = 0;
    bool closing = false;
    std::exception_ptr error;

    std::vector<std::thread> threads;  // Constant after construction
  };

  const Home home_;
  std::atomic<bool> cancelled_{false};
  std::atomic<size_t> next_{0};

  // Written between loops, read by all threads within one
  const Body* body_ = nullptr;
  size_t count_ = 0, grain_ = 1;

  std::unique_ptr<Shared> shared_;
};

}  // namespace outcrop::threads
