#include <unistd.h>

#include <cerrno>

#include "disk/channel.h"

namespace outcrop::disk {
namespace {

class SyncChannel final : public Channel {
 public:
  uint32_t capacity() const override { return 1; }

  void Push(const Request& request) override { request_ = request; }

  size_t Wait(std::span<Completion> out) override {
    const int fd = request_.through_cache ? request_.file->buffered_fd() : request_.file->fd();
    const auto offset = static_cast<off_t>(request_.offset);
    const ssize_t moved = request_.op == Op::kRead
                              ? pread(fd, request_.memory, request_.length, offset)
                              : pwrite(fd, request_.memory, request_.length, offset);
    out[0] = {request_.tag, static_cast<int32_t>(moved >= 0 ? moved : -errno)};
    return 1;
  }

 private:
  Request request_;
};

}  // namespace

std::unique_ptr<Channel> MakeSyncChannel() { return std::make_unique<SyncChannel>(); }

}  // namespace outcrop::disk
