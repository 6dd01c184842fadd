// Channel: the seam between a worker and the kernel, and where faults are injected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "disk/file.h"

namespace outcrop::disk {

enum class Op : uint8_t { kRead, kWrite };

struct Request {
  const File* file = nullptr;
  std::byte* memory = nullptr;
  uint64_t offset = 0;
  uint32_t length = 0;
  uint32_t tag = 0;  // comes back in the completion
  Op op = Op::kRead;
  bool through_cache = false;  // on buffered_fd(), whatever the file's access mode
  bool in_arena = false;       // memory lies in the arena that the channel was made with
};

struct Completion {
  uint32_t tag = 0;
  int32_t result = 0;  // bytes moved, or -errno
};

// Not thread-safe: one per worker, used by that worker's thread alone, construction included.
class Channel {
 public:
  virtual ~Channel() = default;

  // How many requests may be in flight.
  virtual uint32_t capacity() const = 0;

  // REQUIRES: fewer than capacity() in flight.
  virtual void Push(const Request& request) = 0;

  // Sends what was pushed and waits until at least one request has completed; returns how many
  // completions were stored. REQUIRES: something in flight; out.size() >= capacity().
  virtual size_t Wait(std::span<Completion> out) = 0;

  // Lets go of every file that the channel holds beyond its requests: a file held open keeps its
  // space on disk after its deletion.
  virtual void ReleaseFiles() {}
};

// Executes one request at a time with pread and pwrite, in Wait.
std::unique_ptr<Channel> MakeSyncChannel();

}  // namespace outcrop::disk
