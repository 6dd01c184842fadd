#include "disk/error.h"

#include <cstring>

namespace outcrop::disk {
namespace {

std::string Reason(int code, const std::string& detail) {
  return detail.empty() ? std::string(std::strerror(code)) : detail;
}

std::string Message(Stage stage, const std::string& path, uint64_t offset, uint64_t length,
                    const std::string& reason) {
  if (stage == Stage::kOpen) return path + ": " + reason;
  return path + ": " + std::to_string(length) + " B at " + std::to_string(offset) + ": " + reason;
}

}  // namespace

IoError::IoError(Stage stage, int code, std::string path, uint64_t offset, uint64_t length,
                 const std::string& detail)
    : std::runtime_error(Message(stage, path, offset, length, Reason(code, detail))),
      stage_(stage),
      code_(code),
      path_(std::move(path)),
      offset_(offset),
      length_(length),
      reason_(Reason(code, detail)) {}

}  // namespace outcrop::disk
