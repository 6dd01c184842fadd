#include "disk/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "disk/error.h"

// Headers older than Linux 6.1 lack it; the kernel's number never changes.
#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x00002000U
#endif

namespace outcrop::disk {
namespace {

std::atomic<uint64_t> opened_files{0};
std::atomic<uint64_t> closed_files{0};

// struct statx as the kernel fills it, up to the direct I/O fields (offsets are kernel ABI).
struct StatxDirect {
  uint32_t mask;
  uint8_t before[0x98 - sizeof(uint32_t)];
  uint32_t memory_align;
  uint32_t offset_align;
  uint8_t after[0x100 - 0xa0];
};
static_assert(sizeof(StatxDirect) == 0x100);

// The block device's logical block size, or 0 where sysfs does not tell.
uint32_t LogicalBlockBytes(dev_t device) {
  for (const char* up : {"", "../"}) {  // a partition's queue is its parent's
    char path[128];
    std::snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%squeue/logical_block_size",
                  major(device), minor(device), up);
    if (FILE* f = std::fopen(path, "re")) {
      unsigned bytes = 0;
      const bool found = std::fscanf(f, "%u", &bytes) == 1;
      std::fclose(f);
      if (found) return bytes;
    }
  }
  return 0;
}

[[noreturn]] void ThrowOpen(const std::string& path, int code, const std::string& detail = "") {
  throw IoError(Stage::kOpen, code, path, 0, 0, detail);
}

std::string NoSpaceDetail(int fd, uint64_t wanted) {
  struct statvfs fs{};
  if (fstatvfs(fd, &fs) != 0) return "";
  const uint64_t free = static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
  return "No space left on device (" + std::to_string(wanted) + " B wanted, " +
         std::to_string(free) + " B free)";
}

}  // namespace

DirectAlign ProbeDirectAlign(int direct_fd) {
  StatxDirect stx{};
  if (syscall(SYS_statx, direct_fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 &&
      (stx.mask & STATX_DIOALIGN) != 0) {
    return {stx.offset_align, stx.memory_align};  // both 0: not supported on this file
  }
  // Kernels before 6.1 do not say. Ask the device, and prove it with a read; 4096 always works
  // where direct reads work at all.
  struct stat st{};
  if (fstat(direct_fd, &st) != 0) return {};
  for (uint32_t align : {LogicalBlockBytes(st.st_dev), 4096U}) {
    if (align == 0) continue;
    void* memory = nullptr;
    if (posix_memalign(&memory, align, align) != 0) return {};
    const ssize_t got = pread(direct_fd, memory, align, 0);
    std::free(memory);
    if (got >= 0) return {align, align};
  }
  return {};
}

void File::OpenDirect(Access access) {
  if (access == Access::kBuffered) return;
  const int flags = (writable_ ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC;
  int fd = open(path_.c_str(), flags);
  const int code = fd < 0 ? errno : EINVAL;
  if (code != EINVAL && code != EOPNOTSUPP) ThrowOpen(path_, code);  // not O_DIRECT's fault
  const DirectAlign align = fd < 0 ? DirectAlign{} : ProbeDirectAlign(fd);
  if (align.offset != 0 && align.offset <= kPageBytes) {
    direct_fd_ = fd;
    offset_align_ = align.offset;
    memory_align_ = align.memory == 0 ? align.offset : align.memory;
    return;
  }
  if (fd >= 0) close(fd);
  if (access == Access::kDirect) {
    ThrowOpen(path_, code, "the file system refuses O_DIRECT; use access=\"buffered\"");
  }
}

std::shared_ptr<File> File::OpenForRead(const std::string& path, Access access) {
  return Open(path, access, /*writable=*/false);
}

std::shared_ptr<File> File::OpenForUpdate(const std::string& path, Access access) {
  return Open(path, access, /*writable=*/true);
}

std::shared_ptr<File> File::Open(const std::string& path, Access access, bool writable) {
  std::shared_ptr<File> file(new File(path, writable));
  file->buffered_fd_ = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (file->buffered_fd_ < 0) ThrowOpen(path, errno);
  struct stat st{};
  if (fstat(file->buffered_fd_, &st) != 0) ThrowOpen(path, errno);
  if (S_ISDIR(st.st_mode)) ThrowOpen(path, EISDIR);
  file->OpenDirect(access);
  return file;
}

std::shared_ptr<File> File::Create(const std::string& path, uint64_t bytes, Access access) {
  std::shared_ptr<File> file(new File(path, /*writable=*/true));
  file->buffered_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file->buffered_fd_ < 0) ThrowOpen(path, errno);
  try {
    file->Reserve(bytes);
    file->OpenDirect(access);
  } catch (...) {
    unlink(path.c_str());
    throw;
  }
  return file;
}

File::File(std::string path, bool writable)
    : path_(std::move(path)), writable_(writable), serial_(opened_files++) {}

File::~File() {
  ++closed_files;
  if (direct_fd_ >= 0) close(direct_fd_);
  if (buffered_fd_ >= 0) close(buffered_fd_);
}

uint64_t File::closed_count() { return closed_files.load(std::memory_order_relaxed); }

void File::AdviseRandom() const {
  posix_fadvise(buffered_fd_, 0, 0, POSIX_FADV_RANDOM);  // advice: where refused, it is only slower
}

uint64_t File::size() const {
  struct stat st{};
  if (fstat(buffered_fd_, &st) != 0) throw IoError(Stage::kRead, errno, path_, 0, 0);
  return static_cast<uint64_t>(st.st_size);
}

void File::Reserve(uint64_t bytes) {
  const uint64_t had = size();
  if (bytes <= had) return;
  int code = 0;
  do {
    code = fallocate(buffered_fd_, 0, static_cast<off_t>(had), static_cast<off_t>(bytes - had)) == 0
               ? 0
               : errno;
  } while (code == EINTR);
  // A file system without fallocate still gets its length; a full disk then shows at the write.
  if (code == EOPNOTSUPP) return Truncate(bytes);
  if (code != 0) {
    const std::string detail = code == ENOSPC ? NoSpaceDetail(buffered_fd_, bytes - had) : "";
    // fallocate may have kept what it got before it failed
    if (ftruncate(buffered_fd_, static_cast<off_t>(had)) != 0) { /* the first error matters */
    }
    throw IoError(Stage::kWrite, code, path_, had, bytes - had, detail);
  }
}

void File::Truncate(uint64_t bytes) {
  if (ftruncate(buffered_fd_, static_cast<off_t>(bytes)) != 0) {
    throw IoError(Stage::kWrite, errno, path_, bytes, 0);
  }
}

void File::Sync() {
  if (fsync(buffered_fd_) != 0) throw IoError(Stage::kWrite, errno, path_, 0, size());
}

}  // namespace outcrop::disk
