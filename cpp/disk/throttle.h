// Throttle: a drive that is slower than the one at hand, for tests and benchmarks: a channel that
// wraps another, and hands a completion out only when a drive of the given rates would be done.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "disk/channel.h"

namespace outcrop::disk {

// The rates of one drive, whoever reads from it: engines may share it. Thread-safe.
class Throttle {
 public:
  using Clock = std::chrono::steady_clock;

  // 0: no limit of this kind.
  Throttle(uint64_t bytes_per_second, uint64_t requests_per_second);

  // When a request that is sent now is done. As with a drive, time without requests is lost: there
  // is no credit for it, so n bytes never take less than n / bytes_per_second.
  Clock::time_point Reserve(uint32_t bytes);

 private:
  // Constant after construction
  const double byte_ns_, request_ns_;

  std::mutex mutex_;
  // Guarded by mutex_: when all that was sent so far is done, by each of the rates
  Clock::time_point bytes_done_, requests_done_;
};

std::unique_ptr<Channel> MakeThrottledChannel(std::unique_ptr<Channel> inner,
                                              std::shared_ptr<Throttle> throttle);

}  // namespace outcrop::disk
