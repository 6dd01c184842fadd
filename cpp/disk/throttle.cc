#include "disk/throttle.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace outcrop::disk {
namespace {

using Clock = Throttle::Clock;

double NanosecondsEach(uint64_t per_second) {
  return per_second == 0 ? 0 : 1e9 / static_cast<double>(per_second);
}

Clock::duration Nanoseconds(double count) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::nano>(count));
}

class ThrottledChannel final : public Channel {
 public:
  ThrottledChannel(std::unique_ptr<Channel> inner, std::shared_ptr<Throttle> throttle)
      : inner_(std::move(inner)),
        throttle_(std::move(throttle)),
        due_(inner_->capacity()),
        arrived_(inner_->capacity()) {}

  uint32_t capacity() const override { return inner_->capacity(); }

  // REQUIRES: tags are below capacity(), as a worker's are.
  void Push(const Request& request) override {
    due_[request.tag] = throttle_->Reserve(request.length);
    inner_->Push(request);
    ++in_flight_;
  }

  size_t Wait(std::span<Completion> out) override {
    // Also while others are late already: what was pushed has to be sent.
    if (in_flight_ != 0) {
      const size_t count = inner_->Wait(arrived_);
      in_flight_ -= count;
      late_.insert(late_.end(), arrived_.begin(), arrived_.begin() + static_cast<long>(count));
    }
    const auto sooner = [this](const Completion& a, const Completion& b) {
      return due_[a.tag] < due_[b.tag];
    };
    std::sort(late_.begin(), late_.end(), sooner);
    std::this_thread::sleep_until(due_[late_.front().tag]);
    const auto now = Clock::now();
    size_t count = 0;
    while (count < late_.size() && due_[late_[count].tag] <= now) ++count;
    std::copy_n(late_.begin(), count, out.begin());
    late_.erase(late_.begin(), late_.begin() + static_cast<long>(count));
    return count;
  }

  void ReleaseFiles() override { inner_->ReleaseFiles(); }

 private:
  std::unique_ptr<Channel> inner_;
  std::shared_ptr<Throttle> throttle_;
  std::vector<Clock::time_point> due_;  // by tag
  std::vector<Completion> arrived_;
  std::vector<Completion> late_;  // completed by inner_, not yet handed out
  size_t in_flight_ = 0;          // in inner_
};

}  // namespace

Throttle::Throttle(uint64_t bytes_per_second, uint64_t requests_per_second)
    : byte_ns_(NanosecondsEach(bytes_per_second)),
      request_ns_(NanosecondsEach(requests_per_second)) {}

Clock::time_point Throttle::Reserve(uint32_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  bytes_done_ = std::max(now, bytes_done_) + Nanoseconds(byte_ns_ * bytes);
  requests_done_ = std::max(now, requests_done_) + Nanoseconds(request_ns_);
  return std::max(bytes_done_, requests_done_);
}

std::unique_ptr<Channel> MakeThrottledChannel(std::unique_ptr<Channel> inner,
                                              std::shared_ptr<Throttle> throttle) {
  return std::make_unique<ThrottledChannel>(std::move(inner), std::move(throttle));
}

}  // namespace outcrop::disk
