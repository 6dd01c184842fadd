// Home: which process made a thing. Threads do not cross a fork, locks may be held by threads that
// are gone, and memory that the parent keeps to itself is not there.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace outcrop::threads {

// A thing of another process was used in its forked child.
class Forked : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A member of whatever has threads, waits for others or hides memory from children. Thread-safe.
class Home {
 public:
  // False in a forked child of the process that made this.
  bool Here() const { return forks_ == Forks(); }
  // Throws Forked: "this <what> belongs to another process".
  void Check(const char* what) const;

 private:
  static uint64_t Forks();

  uint64_t forks_ = Forks();
};

}  // namespace outcrop::threads
