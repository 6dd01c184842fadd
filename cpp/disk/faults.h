// Faults on demand: a channel that wraps another and makes chosen requests fail, come short, late
// or out of order. What a test cannot provoke it cannot test.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "disk/channel.h"

namespace outcrop::disk {

struct FaultOptions {
  // The fail_at-th request of the kind (1 is the first; 0: none) and the fail_count - 1 after it
  // fail with `error`. Retries count as requests.
  uint64_t fail_read_at = 0;
  uint64_t fail_write_at = 0;
  uint64_t fail_count = 1;
  int error = 5;  // EIO

  uint64_t short_every = 0;  // every n-th request moves only a part of its bytes
  uint64_t delay_us = 0;     // every wait lasts up to this much longer, at random
  bool reorder = false;      // completions are handed out in random order
  uint64_t seed = 0;
};

// Counts over all workers of an engine.
struct FaultState {
  explicit FaultState(const FaultOptions& wanted) : options(wanted) {}
  const FaultOptions options;
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> writes{0};
};

std::unique_ptr<Channel> MakeFaultyChannel(std::unique_ptr<Channel> inner,
                                           std::shared_ptr<FaultState> state);

}  // namespace outcrop::disk
