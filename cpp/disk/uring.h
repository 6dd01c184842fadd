// io_uring: whether it is compiled in and allowed, and the channel that uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "disk/channel.h"
#include "disk/memory.h"

namespace outcrop::disk {

// Whether this build holds io_uring at all.
bool UringCompiled();

// Empty where a ring can be made in this process now; else why not, for people to read.
// (It may be compiled in and denied: seccomp profiles of containers, a sysctl.)
std::string UringRefusal();

// A ring of at least `depth` entries. Up to kRegisteredBytes of arenas per process are registered
// with the kernel; where it refuses (RLIMIT_MEMLOCK), the ring works with plain memory.
// Throws IoError where the ring cannot be made.
std::unique_ptr<Channel> MakeUringChannel(uint32_t depth, const Arena& arena);

// Registered memory counts against RLIMIT_MEMLOCK of the user, which is often 8 MiB in all, and
// the kernel gives it back late.
inline constexpr uint64_t kRegisteredBytes = 2 << 20;

// How much is registered in this process now.
uint64_t RegisteredBytes();

}  // namespace outcrop::disk
