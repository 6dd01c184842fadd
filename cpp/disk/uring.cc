#include "disk/uring.h"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "disk/error.h"

#ifdef OUTCROP_WITH_URING
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#endif

namespace outcrop::disk {
namespace {

std::atomic<uint64_t> registered_bytes{0};

}  // namespace

uint64_t RegisteredBytes() { return registered_bytes.load(); }

#ifndef OUTCROP_WITH_URING

bool UringCompiled() { return false; }
std::string UringRefusal() { return "this build has no io_uring (liburing was not found)"; }
std::unique_ptr<Channel> MakeUringChannel(uint32_t, const Arena&) {
  throw IoError(Stage::kOpen, ENOSYS, "io_uring", 0, 0, UringRefusal());
}

#else

namespace {

// Takes `bytes` of the process's allowance; false where too little is left.
bool TakeAllowance(uint64_t bytes) {
  uint64_t taken = registered_bytes.load();
  do {
    if (taken + bytes > kRegisteredBytes) return false;
  } while (!registered_bytes.compare_exchange_weak(taken, taken + bytes));
  return true;
}

// Newer kernels run completions in the worker's own time if asked; older ones refuse the flags.
int InitRing(uint32_t depth, io_uring* ring) {
  constexpr unsigned kModern =
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CLAMP;
  int code = io_uring_queue_init(depth, ring, kModern);
  if (code == -EINVAL) code = io_uring_queue_init(depth, ring, IORING_SETUP_CLAMP);
  return code;
}

class UringChannel final : public Channel {
 public:
  UringChannel(uint32_t depth, const Arena& arena) {
    const int code = InitRing(depth, &ring_);
    if (code < 0) throw IoError(Stage::kOpen, -code, "io_uring", 0, 0);
    // The kernel drops or delays completions that find no room: never have more in flight.
    capacity_ = std::min({depth, ring_.sq.ring_entries, ring_.cq.ring_entries});
    RegisterArena(arena.memory());
    files_registered_ = io_uring_register_files_sparse(&ring_, kFileSlots) == 0;
  }

  ~UringChannel() override {
    io_uring_queue_exit(&ring_);
    registered_bytes -= arena_bytes_;
  }

  uint32_t capacity() const override { return capacity_; }

  void Push(const Request& request) override {
    // Capacity is at most the size of the submission queue, which Wait empties: there is room.
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    const int fd = request.through_cache ? request.file->buffered_fd() : request.file->fd();
    const int slot = FileSlot(2 * request.file->serial() + request.through_cache, fd);
    const int target = slot >= 0 ? slot : fd;
    const bool fixed = request.in_arena && arena_bytes_ != 0;
    if (request.op == Op::kRead) {
      if (fixed) {
        io_uring_prep_read_fixed(sqe, target, request.memory, request.length, request.offset, 0);
      } else {
        io_uring_prep_read(sqe, target, request.memory, request.length, request.offset);
      }
    } else {
      if (fixed) {
        io_uring_prep_write_fixed(sqe, target, request.memory, request.length, request.offset, 0);
      } else {
        io_uring_prep_write(sqe, target, request.memory, request.length, request.offset);
      }
    }
    if (slot >= 0) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, request.tag);
  }

  size_t Wait(std::span<Completion> out) override {
    for (;;) {
      const int code = io_uring_submit_and_wait(&ring_, 1);
      if (const size_t count = Reap(out); count != 0) return count;
      if (code >= 0 || code == -EINTR) continue;
      if (code != -EAGAIN && code != -EBUSY) Abort(code);
      usleep(100);  // the kernel is short of memory for now
    }
  }

  void ReleaseFiles() override {
    // A request looks its slot up when it is sent: until then the slot must not change. From then
    // on it keeps the file that it found.
    if (io_uring_sq_ready(&ring_) != 0) return;
    for (size_t slot = 0; slot < kFileSlots; ++slot) {
      if (keys_[slot] != kFree) SetSlot(slot, kFree, -1);
    }
  }

 private:
  static constexpr size_t kFileSlots = 16;
  static constexpr uint64_t kFree = ~uint64_t{0};

  // A ring that no longer takes calls still owns memory that it may write to at any time: there
  // is no safe way on. It has no such error but for bugs.
  [[noreturn]] static void Abort(int code) {
    std::fprintf(stderr, "outcrop: io_uring_enter: %s\n", std::strerror(-code));
    std::abort();
  }

  void RegisterArena(const AlignedMemory& memory) {
    if (!TakeAllowance(memory.size())) return;
    const iovec whole{memory.data(), memory.size()};
    if (io_uring_register_buffers(&ring_, &whole, 1) == 0) {
      arena_bytes_ = memory.size();
    } else {
      registered_bytes -= memory.size();
    }
  }

  // The slot in which a file is registered, or -1 where its descriptor must be used as it is.
  // Keyed by the file, not by its descriptor: the number of a closed one is soon another file's.
  int FileSlot(uint64_t key, int fd) {
    if (!files_registered_) return -1;
    for (size_t slot = 0; slot < kFileSlots; ++slot) {
      if (keys_[slot] == kFree && !SetSlot(slot, key, fd)) return -1;
      if (keys_[slot] == key) return static_cast<int>(slot);
    }
    return -1;
  }

  bool SetSlot(size_t slot, uint64_t key, int fd) {
    keys_[slot] = kFree;
    if (io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &fd, 1) != 1) {
      return false;
    }
    keys_[slot] = key;
    return true;
  }

  size_t Reap(std::span<Completion> out) {
    size_t count = 0;
    unsigned head = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      if (count == out.size()) break;
      out[count++] = {static_cast<uint32_t>(io_uring_cqe_get_data64(cqe)), cqe->res};
    }
    io_uring_cq_advance(&ring_, static_cast<unsigned>(count));
    return count;
  }

  io_uring ring_{};
  uint32_t capacity_ = 0;
  uint64_t arena_bytes_ = 0;  // registered, 0: not
  bool files_registered_ = false;
  std::array<uint64_t, kFileSlots> keys_ = [] {
    std::array<uint64_t, kFileSlots> keys;
    keys.fill(kFree);
    return keys;
  }();
};

}  // namespace

bool UringCompiled() { return true; }

std::string UringRefusal() {
  io_uring ring;
  const int code = InitRing(4, &ring);
  if (code == 0) {
    io_uring_queue_exit(&ring);
    return "";
  }
  const char* hint = code == -ENOMEM ? " (the limit on locked memory, ulimit -l, is too low)" : "";
  return std::string("the kernel refuses io_uring_setup: ") + std::strerror(-code) + hint;
}

std::unique_ptr<Channel> MakeUringChannel(uint32_t depth, const Arena& arena) {
  return std::make_unique<UringChannel>(depth, arena);
}

#endif  // OUTCROP_WITH_URING

}  // namespace outcrop::disk
