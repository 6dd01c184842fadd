// File: one open file, how it may be read and written, and in which units.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace outcrop::disk {

enum class Access {
  kAuto,      // direct where the file system allows it, else buffered
  kDirect,    // O_DIRECT, or fail
  kBuffered,  // through the page cache
};

// A page: what direct writes are aligned to, so that a page written around the page cache is
// never also written through it.
inline constexpr uint64_t kPageBytes = 4096;

// Thread-safe: constant after construction, apart from Close by the last owner.
class File {
 public:
  // Opens a file that exists, for reading. Throws IoError (kOpen).
  static std::shared_ptr<File> OpenForRead(const std::string& path, Access access);
  // The same for writing and reading.
  static std::shared_ptr<File> OpenForUpdate(const std::string& path, Access access);

  // Creates a new file of `bytes` bytes, all of them allocated on disk, for writing and reading.
  // An existing file is an error; where the space is missing nothing is left behind.
  static std::shared_ptr<File> Create(const std::string& path, uint64_t bytes, Access access);

  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  bool direct() const { return direct_fd_ >= 0; }
  bool writable() const { return writable_; }

  // The descriptor for aligned requests, and the one that takes any request.
  int fd() const { return direct() ? direct_fd_ : buffered_fd_; }
  int buffered_fd() const { return buffered_fd_; }

  // What offset and length, and what memory, of a request on fd() are multiples of: 1 if buffered.
  uint32_t offset_align() const { return offset_align_; }
  uint32_t memory_align() const { return memory_align_; }

  // Differs between any two File objects of a process; a descriptor's number is used again.
  uint64_t serial() const { return serial_; }
  // How many File objects were closed in this process.
  static uint64_t closed_count();

  // Reads of buffered_fd() bring the pages that they want, and none ahead of them.
  void AdviseRandom() const;

  // As it is now: a file may grow, or be truncated by someone else.
  uint64_t size() const;

  // Allocates disk space up to `bytes` and extends the file to it; never shrinks. Throws IoError.
  void Reserve(uint64_t bytes);
  void Truncate(uint64_t bytes);
  // On return, data and size have reached the device.
  void Sync();

 private:
  File(std::string path, bool writable);
  static std::shared_ptr<File> Open(const std::string& path, Access access, bool writable);
  void OpenDirect(Access access);

  const std::string path_;
  const bool writable_;
  const uint64_t serial_;
  int buffered_fd_ = -1;
  int direct_fd_ = -1;
  uint32_t offset_align_ = 1;
  uint32_t memory_align_ = 1;
};

// The alignment that direct reads of an open O_DIRECT descriptor need; 0 where it cannot do them.
struct DirectAlign {
  uint32_t offset = 0;
  uint32_t memory = 0;
};
DirectAlign ProbeDirectAlign(int direct_fd);

}  // namespace outcrop::disk
