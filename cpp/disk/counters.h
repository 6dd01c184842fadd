// What an engine did, in numbers.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace outcrop::disk {

// Latencies by power of two: bucket b counts requests of [2^b, 2^(b+1)) nanoseconds.
inline constexpr size_t kLatencyBuckets = 40;
// Sizes likewise: bucket b counts requests of up to 2^(12 + b) bytes, and more than the bucket
// before it; the last has all that is beyond 4 MiB.
inline constexpr size_t kSizeBuckets = 12;

struct Counters {
  uint64_t read_requests = 0;
  uint64_t bytes_wanted = 0;  // by callers of reads
  uint64_t bytes_read = 0;    // from the device or the page cache
  uint64_t write_requests = 0;
  uint64_t bytes_written = 0;
  uint64_t retries = 0;  // requests sent again: short, interrupted, refused for now
  uint64_t wait_ns = 0;  // callers blocked in Wait
  std::array<uint64_t, kLatencyBuckets> latency{};
  std::array<uint64_t, kSizeBuckets> read_sizes{};
  std::array<uint64_t, kSizeBuckets> write_sizes{};
};

// Thread-safe.
class LiveCounters {
 public:
  Counters Snapshot() const {
    Counters c;
    c.read_requests = read_requests.load();
    c.bytes_wanted = bytes_wanted.load();
    c.bytes_read = bytes_read.load();
    c.write_requests = write_requests.load();
    c.bytes_written = bytes_written.load();
    c.retries = retries.load();
    c.wait_ns = wait_ns.load();
    for (size_t b = 0; b < kLatencyBuckets; ++b) c.latency[b] = latency[b].load();
    for (size_t b = 0; b < kSizeBuckets; ++b) {
      c.read_sizes[b] = read_sizes[b].load();
      c.write_sizes[b] = write_sizes[b].load();
    }
    return c;
  }

  void CountLatency(uint64_t ns) {
    const size_t bucket = static_cast<size_t>(std::bit_width(ns | 1)) - 1;
    latency[bucket < kLatencyBuckets ? bucket : kLatencyBuckets - 1].fetch_add(
        1, std::memory_order_relaxed);
  }

  void CountSize(bool read, uint64_t bytes) {
    const auto width = static_cast<size_t>(std::bit_width(bytes == 0 ? 0 : bytes - 1));
    const size_t bucket = width < 12 ? 0 : std::min(width - 12, kSizeBuckets - 1);
    (read ? read_sizes : write_sizes)[bucket].fetch_add(1, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> read_requests{0}, bytes_wanted{0}, bytes_read{0}, write_requests{0},
      bytes_written{0}, retries{0}, wait_ns{0};
  std::array<std::atomic<uint64_t>, kLatencyBuckets> latency{};
  std::array<std::atomic<uint64_t>, kSizeBuckets> read_sizes{}, write_sizes{};
};

}  // namespace outcrop::disk
