// Errors of the disk layer: what failed, on which file, at which bytes, and why.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace outcrop::disk {

// Where an I/O failed. Each becomes its own Python exception.
enum class Stage { kOpen, kRead, kWrite };

class IoError : public std::runtime_error {
 public:
  // `detail` replaces strerror(code) in the message where errno alone would mislead.
  IoError(Stage stage, int code, std::string path, uint64_t offset, uint64_t length,
          const std::string& detail = "");

  Stage stage() const { return stage_; }
  int code() const { return code_; }
  const std::string& path() const { return path_; }
  uint64_t offset() const { return offset_; }
  uint64_t length() const { return length_; }
  const std::string& reason() const { return reason_; }

 private:
  Stage stage_;
  int code_;
  std::string path_;
  uint64_t offset_;
  uint64_t length_;
  std::string reason_;
};

// The engine was closed, or the transfer cancelled, before all of it was done.
class Cancelled : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace outcrop::disk
