#include "disk/guarded_map.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "disk/error.h"

namespace outcrop::disk {
namespace {

[[noreturn]] void ThrowTruncated(const File& file, uint64_t offset, uint64_t length) {
  throw IoError(Stage::kRead, ENODATA, file.path(), offset, length,
                "the file ends before that: it was truncated while open");
}

// What the kernel could not copy from the map: read(2) says why, or has it after all.
void Read(const File& file, uint64_t offset, std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = pread(file.buffered_fd(), out.data() + done, out.size() - done,
                              static_cast<off_t>(offset + done));
    if (got == 0) ThrowTruncated(file, offset, out.size());
    if (got < 0 && errno != EINTR) {
      throw IoError(Stage::kRead, errno, file.path(), offset, out.size());
    }
    if (got > 0) done += static_cast<size_t>(got);
  }
}

}  // namespace

// A page that the kernel writes to and we read: a file in memory, mapped.
class GuardedMap::Page {
 public:
  Page() : fd_(memfd_create("outcrop", MFD_CLOEXEC)) {
    if (fd_ < 0 || ftruncate(fd_, kPageBytes) != 0) return;
    void* memory = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, fd_, 0);
    if (memory != MAP_FAILED) data_ = static_cast<const std::byte*>(memory);
  }
  ~Page() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), kPageBytes);
    if (fd_ >= 0) close(fd_);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  // -> how many bytes could be copied, from the first on; 0 also where there are no files in
  // memory.
  size_t Fill(std::span<const iovec> parts) const {
    if (data_ == nullptr) return 0;
    const ssize_t got = pwritev(fd_, parts.data(), static_cast<int>(parts.size()), 0);
    return got < 0 ? 0 : static_cast<size_t>(got);
  }
  const std::byte* data() const { return data_; }

 private:
  int fd_;
  const std::byte* data_ = nullptr;
};

GuardedMap::GuardedMap(std::shared_ptr<const File> file)
    : file_(std::move(file)), bytes_(file_->size()) {
  if (bytes_ == 0) return;
  void* memory = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file_->buffered_fd(), 0);
  if (memory == MAP_FAILED) throw IoError(Stage::kOpen, errno, file_->path(), 0, bytes_);
  madvise(memory, bytes_, MADV_RANDOM);
  file_->AdviseRandom();
  data_ = static_cast<const std::byte*>(memory);
}

GuardedMap::~GuardedMap() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), bytes_);
}

void GuardedMap::Copy(std::span<const Range> ranges, std::span<std::byte> out) {
  std::array<iovec, kMostRanges> parts;
  for (size_t i = 0; i < ranges.size(); ++i) {
    CheckRange(ranges[i]);
    parts[i] = {const_cast<std::byte*>(data_ + ranges[i].offset), ranges[i].length};
    __builtin_prefetch(parts[i].iov_base);  // which ignores what it cannot have
  }
  std::unique_ptr<Page> page = TakePage();
  size_t done = 0;
  for (size_t next = 0; next < ranges.size();) {
    size_t got = page->Fill({parts.data() + next, ranges.size() - next});
    if (got != 0) std::memcpy(out.data() + done, page->data(), got);
    done += got;
    for (; next < ranges.size() && got >= parts[next].iov_len; ++next) got -= parts[next].iov_len;
    if (next == ranges.size()) break;
    // Where it stopped within a range, that is read again from its beginning.
    done -= got;
    Read(*file_, ranges[next].offset, out.subspan(done, ranges[next].length));
    done += ranges[next++].length;
  }
  ReturnPage(std::move(page));
}

void GuardedMap::CheckRange(const Range& range) const {
  if (range.end() > bytes_) ThrowTruncated(*file_, range.offset, range.length);
}

void GuardedMap::CheckSize() const {
  if (const uint64_t now = file_->size(); now < bytes_) ThrowTruncated(*file_, now, bytes_ - now);
}

// What an exception prevents from being returned is freed.
std::unique_ptr<GuardedMap::Page> GuardedMap::TakePage() {
  home_.Check("topology");
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<Page>();
  std::unique_ptr<Page> page = std::move(free_.back());
  free_.pop_back();
  return page;
}

void GuardedMap::ReturnPage(std::unique_ptr<Page> page) {
  const std::lock_guard lock(mutex_);
  if (free_.size() < kKeptPages) free_.push_back(std::move(page));
}

}  // namespace outcrop::disk
