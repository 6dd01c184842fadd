#include "disk/plan.h"

#include <algorithm>
#include <cstring>

#include "disk/align.h"

namespace outcrop::disk {
namespace {

std::byte* MemoryAt(const Extent& extent, uint64_t offset) {
  return extent.memory + (offset - extent.offset);
}

// Extents from `first` on that are contiguous in the file and in memory, followed up to `limit`.
struct Run {
  uint64_t end;  // of its last byte in the file
  size_t next;   // the extent after it
};

Run RunFrom(const ExtentList& extents, size_t first, uint64_t limit) {
  Extent extent = extents[first];
  size_t next = first + 1;
  for (; next < extents.size() && extent.end() < limit; ++next) {
    const Extent follower = extents[next];
    if (follower.offset != extent.end()) break;
    if (follower.memory != extent.memory + extent.length) break;
    extent = follower;
  }
  return {extent.end(), next};
}

// Whether the bytes of the run up to `end` are wanted by the run alone.
bool Alone(const ExtentList& extents, const Run& run, uint64_t end) {
  return run.end >= end && (run.next == extents.size() || extents[run.next].offset >= end);
}

// The end of the run of extents from `first` on that is contiguous in the file.
uint64_t ChainEnd(const ExtentList& extents, size_t first, uint64_t limit) {
  uint64_t end = extents[first].end();
  for (size_t i = first + 1; i < extents.size() && end < limit; ++i) {
    const Extent next = extents[i];
    if (next.length != 0 && next.offset != end) break;
    end += next.length;
  }
  return end;
}

// Moves `next` past extents that are empty or end before `from`; true where none is left.
bool SkipPlanned(const ExtentList& extents, uint64_t from, size_t* next) {
  while (*next < extents.size()) {
    const Extent extent = extents[*next];
    if (extent.length != 0 && extent.end() > from) return false;
    ++*next;
  }
  return true;
}

template <typename Copy>
void ForEachShare(const ExtentList& extents, const Piece& piece, Copy copy) {
  const uint64_t piece_end = piece.offset + piece.length;
  for (size_t i = piece.first; i < piece.last; ++i) {
    const Extent extent = extents[i];
    const uint64_t begin = std::max(extent.offset, piece.offset);
    const uint64_t end = std::min(extent.end(), piece_end);
    if (begin < end) copy(MemoryAt(extent, begin), begin - piece.offset, end - begin);
  }
}

}  // namespace

bool ReadPlanner::AtEnd() { return SkipPlanned(extents_, from_, &next_); }

Piece ReadPlanner::Next() {
  const uint64_t start = std::max(extents_[next_].offset, from_);
  if (!options_.merge) return ExtentAlone(start);
  Piece piece;
  if (!StraightRun(start, &piece)) piece = MergedRun(start);
  from_ = piece.offset + piece.length;
  return piece;
}

// A long aligned run, or the unaligned head that stands before it.
bool ReadPlanner::StraightRun(uint64_t start, Piece* piece) {
  const uint64_t unit = options_.unit_bytes;
  const uint64_t aligned = RoundUp(start, unit);
  std::byte* memory = MemoryAt(extents_[next_], aligned);
  if (!options_.straight || !IsAligned(memory, options_.memory_align)) return false;
  const uint64_t limit = aligned + options_.max_request_bytes;
  const Run run = RunFrom(extents_, next_, limit);
  const uint64_t end = std::min(RoundDown(run.end, unit), limit);
  if (end < aligned + kStraightBytes || !Alone(extents_, run, end)) return false;
  piece->first = next_;
  piece->last = next_ + 1;
  if (aligned == start) {
    piece->offset = aligned;
    piece->length = static_cast<uint32_t>(end - aligned);
    piece->straight = memory;
  } else {
    piece->offset = RoundDown(start, unit);
    piece->length = static_cast<uint32_t>(unit);
    while (piece->last < extents_.size() && extents_[piece->last].offset < aligned) ++piece->last;
  }
  piece->needed = piece->length;
  return true;
}

Piece ReadPlanner::MergedRun(uint64_t start) {
  const uint64_t unit = options_.unit_bytes;
  const Extent head = extents_[next_];
  const uint64_t begin = RoundDown(start, unit);
  const uint64_t limit = begin + options_.max_bounce_bytes;
  uint64_t wanted_end = head.end();
  uint64_t end = RoundUp(head.end(), unit);
  size_t last = next_ + 1;
  for (; last < extents_.size() && end < limit; ++last) {
    const Extent extent = extents_[last];
    if (extent.length >= 2 * kStraightBytes) break;  // deserves a straight piece of its own
    if (RoundDown(extent.offset, unit) > end + options_.gap_bytes) break;
    const uint64_t grown = std::max(end, RoundUp(extent.end(), unit));
    if (grown > limit) break;
    end = grown;
    wanted_end = std::max(wanted_end, extent.end());
  }
  end = std::min(end, limit);
  // Whatever else begins before the end has bytes here that no later piece will bring.
  for (; last < extents_.size() && extents_[last].offset < end; ++last) {
    wanted_end = std::max(wanted_end, extents_[last].end());
  }
  Piece piece;
  piece.offset = begin;
  piece.length = static_cast<uint32_t>(end - begin);
  piece.needed = static_cast<uint32_t>(std::min(wanted_end, end) - begin);
  piece.first = next_;
  piece.last = last;
  std::byte* memory = MemoryAt(head, start);
  if (options_.straight && begin == start && IsAligned(memory, options_.memory_align) &&
      Alone(extents_, RunFrom(extents_, next_, end), end)) {
    piece.straight = memory;
  }
  return piece;
}

// The next extent, or its next part; what others want of the same pages is read again for them.
Piece ReadPlanner::ExtentAlone(uint64_t start) {
  const uint64_t unit = options_.unit_bytes;
  Piece piece;
  piece.offset = RoundDown(start, unit);
  const uint64_t limit = piece.offset + options_.max_bounce_bytes;
  from_ = std::min(extents_[next_].end(), limit);
  piece.length = static_cast<uint32_t>(RoundUp(from_, unit) - piece.offset);
  piece.needed = static_cast<uint32_t>(from_ - piece.offset);
  piece.first = next_;
  piece.last = next_ + 1;
  // Extents that overlap it: their bytes up to here, no later piece will bring.
  while (piece.last < extents_.size() && extents_[piece.last].offset < from_) ++piece.last;
  return piece;
}

bool WritePlanner::AtEnd() { return SkipPlanned(extents_, from_, &next_); }

Piece WritePlanner::Next() {
  const uint64_t unit = options_.unit_bytes;
  const Extent head = extents_[next_];
  const uint64_t start = std::max(head.offset, from_);
  const uint64_t limit = start + options_.max_bounce_bytes;
  const uint64_t chain = std::min(ChainEnd(extents_, next_, limit), limit);
  const uint64_t end = RoundDown(chain, unit);
  const bool whole_pages = RoundDown(start, unit) == start && end > start;
  Piece piece;
  piece.offset = start;
  piece.edge = !whole_pages;
  piece.first = next_;
  from_ = whole_pages ? end : std::min(chain, RoundUp(start + 1, unit));
  if (whole_pages && IsAligned(MemoryAt(head, start), options_.memory_align)) {
    const uint64_t far = start + options_.max_request_bytes;
    const uint64_t run = std::min(RoundDown(RunFrom(extents_, next_, far).end, unit), far);
    if (run >= start + kStraightBytes || run >= end) {
      piece.straight = MemoryAt(head, start);
      from_ = run;
    }
  }
  piece.length = piece.needed = static_cast<uint32_t>(from_ - start);
  piece.last = next_ + 1;
  while (piece.last < extents_.size() && extents_[piece.last].offset < from_) ++piece.last;
  return piece;
}

void CopyOut(const ExtentList& extents, const Piece& piece, const std::byte* bounce) {
  ForEachShare(extents, piece, [&](std::byte* memory, uint64_t at, uint64_t length) {
    std::memcpy(memory, bounce + at, length);
  });
}

void CopyIn(const ExtentList& extents, const Piece& piece, std::byte* bounce) {
  ForEachShare(extents, piece, [&](std::byte* memory, uint64_t at, uint64_t length) {
    std::memcpy(bounce + at, memory, length);
  });
}

}  // namespace outcrop::disk
