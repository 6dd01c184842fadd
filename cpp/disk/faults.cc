#include "disk/faults.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <vector>

namespace outcrop::disk {
namespace {

class FaultyChannel final : public Channel {
 public:
  FaultyChannel(std::unique_ptr<Channel> inner, std::shared_ptr<FaultState> state)
      : inner_(std::move(inner)),
        state_(std::move(state)),
        random_(state_->options.seed),
        arrived_(inner_->capacity()) {}

  uint32_t capacity() const override { return inner_->capacity(); }

  void Push(const Request& request) override {
    const FaultOptions& options = state_->options;
    const bool read = request.op == Op::kRead;
    const uint64_t number = (read ? state_->reads : state_->writes).fetch_add(1) + 1;
    const uint64_t fail_at = read ? options.fail_read_at : options.fail_write_at;
    if (fail_at != 0 && number >= fail_at && number < fail_at + options.fail_count) {
      ready_.push_back({request.tag, -options.error});
      return;
    }
    Request passed = request;
    if (options.short_every != 0 && number % options.short_every == 0)
      passed.length = Part(request);
    inner_->Push(passed);
    ++in_flight_;
  }

  size_t Wait(std::span<Completion> out) override {
    const FaultOptions& options = state_->options;
    if (options.delay_us != 0) usleep(static_cast<useconds_t>(random_() % (options.delay_us + 1)));
    if (in_flight_ != 0) {
      const size_t count = inner_->Wait(arrived_);
      in_flight_ -= count;
      ready_.insert(ready_.end(), arrived_.begin(), arrived_.begin() + static_cast<long>(count));
    }
    if (options.reorder) std::shuffle(ready_.begin(), ready_.end(), random_);
    const size_t count = options.reorder ? 1 + random_() % ready_.size() : ready_.size();
    std::copy_n(ready_.begin(), count, out.begin());
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<long>(count));
    return count;
  }

  void ReleaseFiles() override { inner_->ReleaseFiles(); }

 private:
  // Part of a request, of a size that its file takes.
  uint32_t Part(const Request& request) {
    const uint32_t unit = request.through_cache ? 1 : request.file->offset_align();
    const uint32_t units = request.length / unit;
    return units <= 1 ? request.length : unit * static_cast<uint32_t>(1 + random_() % (units - 1));
  }

  std::unique_ptr<Channel> inner_;
  std::shared_ptr<FaultState> state_;
  std::minstd_rand random_;
  std::vector<Completion> arrived_;
  std::vector<Completion> ready_;  // completed, not yet handed out
  size_t in_flight_ = 0;           // in inner_
};

}  // namespace

std::unique_ptr<Channel> MakeFaultyChannel(std::unique_ptr<Channel> inner,
                                           std::shared_ptr<FaultState> state) {
  return std::make_unique<FaultyChannel>(std::move(inner), std::move(state));
}

}  // namespace outcrop::disk
