#include "tests/scratch.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace outcrop::tests {

ScratchDir::ScratchDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "outcrop-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

ScratchDir::~ScratchDir() { std::filesystem::remove_all(path_); }

std::vector<std::byte> RandomBytes(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes(size);
  std::minstd_rand random(seed);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
  return bytes;
}

void WriteFile(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
}

std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

}  // namespace outcrop::tests
