// Temporary files with known bytes, for the tests of this folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outcrop::tests {

// A directory that is removed with all that is in it.
class ScratchDir {
 public:
  ScratchDir();
  ~ScratchDir();
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// `size` bytes that depend on the seed.
std::vector<std::byte> RandomBytes(size_t size, uint32_t seed = 1);

void WriteFile(const std::string& path, const std::vector<std::byte>& bytes);
std::vector<std::byte> ReadFile(const std::string& path);

}  // namespace outcrop::tests
