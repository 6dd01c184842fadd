// Worker: one thread of an engine; keeps its channel full and copies rows out of what arrives.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "disk/channel.h"
#include "disk/engine.h"
#include "disk/memory.h"

namespace outcrop::disk {

// Not thread-safe: lives and dies in its thread.
class Worker {
 public:
  explicit Worker(Engine* engine);

  // Returns when the engine closes and nothing is in flight.
  void Run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Flight {
    std::shared_ptr<Transfer> transfer;
    Piece piece;
    std::byte* bounce = nullptr;
    uint32_t moved = 0;    // bytes of the piece that are done
    uint32_t retries = 0;  // without progress
    Clock::time_point sent;
  };

  void Fill();
  bool Launch(std::shared_ptr<Transfer> transfer, const Piece& piece);
  void Send(uint32_t tag);
  void Land(const Completion& completion, Clock::time_point now);
  void Continue(uint32_t tag, int32_t result);
  void Count(const Flight& flight, uint32_t bytes, Clock::time_point now);
  void Release(uint32_t tag);
  bool idle() const { return free_tags_.size() == flights_.size(); }

  Engine* const engine_;
  Arena arena_;
  std::unique_ptr<Channel> channel_;
  std::vector<Flight> flights_;  // by tag
  std::vector<uint32_t> free_tags_;
  std::vector<Completion> completions_;

  // Taken and not yet sent, for want of bounce memory
  std::vector<Piece> taken_;
  size_t taken_next_ = 0, taken_count_ = 0;
  std::shared_ptr<Transfer> taken_from_;

  uint64_t files_closed_ = 0;
};

}  // namespace outcrop::disk
