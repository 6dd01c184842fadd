// Waiting for the disk, but no longer than somebody wants what it brings.
#pragma once

#include <chrono>

#include "disk/transfer.h"
#include "threads/pool.h"

namespace outcrop::sample {

// How soon a wait sees that its pool was cancelled.
inline constexpr std::chrono::milliseconds kPatience(10);

// Waits for a transfer; throws threads::Cancelled once the pool was. However it ends, nothing is in
// flight any more.
inline void WaitFor(disk::Transfer& transfer, const threads::Pool& pool) {
  while (!transfer.WaitFor(kPatience)) {
    if (!pool.cancelled()) continue;
    transfer.Cancel();
    try {
      transfer.Wait();
    } catch (...) {  // it was given up: what it met is of no interest
    }
    throw threads::Cancelled();
  }
}

}  // namespace outcrop::sample
