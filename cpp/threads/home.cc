#include "threads/home.h"

#include <pthread.h>

#include <atomic>
#include <string>

namespace outcrop::threads {
namespace {

std::atomic<uint64_t> forks{0};
// Counted rather than asked of the kernel, which would cost a call each time.
[[maybe_unused]] const int counting = pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace

uint64_t Home::Forks() { return forks.load(std::memory_order_relaxed); }

void Home::Check(const char* what) const {
  if (Here()) return;
  throw Forked("this " + std::string(what) +
               " belongs to another process: make one after fork, or start workers by spawn");
}

}  // namespace outcrop::threads
