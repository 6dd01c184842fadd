// Plan: extents -> the requests that the device sees, one at a time and in one forward sweep.
//
// A piece is one request. It either lands where its bytes belong ("straight") or in a worker's
// bounce memory, from which each extent's share is copied out. Merging neighbours saves requests,
// straight pieces save copies; both follow from the file's alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "disk/extents.h"

namespace outcrop::disk {

struct PlanOptions {
  uint32_t unit_bytes = 1;         // pieces begin and end at multiples of this
  uint32_t memory_align = 1;       // what straight memory must be aligned to
  bool straight = true;            // else all goes through bounce memory
  uint64_t gap_bytes = 0;          // read up to this much unwanted to save a request
  bool merge = true;               // else each extent has requests of its own
  uint32_t max_request_bytes = 1;  // of a straight piece
  uint32_t max_bounce_bytes = 1;   // of a bounced piece; a multiple of unit_bytes
};

struct Piece {
  uint64_t offset = 0;
  uint32_t length = 0;
  uint32_t needed = 0;            // bytes from `offset` to the end of the last wanted one
  size_t first = 0, last = 0;     // extents [first, last) hold every wanted byte of the piece
  std::byte* straight = nullptr;  // where it lands; null: bounce
  bool edge = false;              // a write that is not whole pages: goes through the page cache
};

// From this size on, an aligned run goes straight even where that costs one more request for
// its unaligned edge: copying 64 KiB takes about as long as a request.
inline constexpr uint64_t kStraightBytes = 64 << 10;

// Not thread-safe. Cost is linear in the number of extents unless a long extent overlaps many.
class ReadPlanner {
 public:
  ReadPlanner(const ExtentList& extents, const PlanOptions& options)
      : extents_(extents), options_(options) {}

  bool AtEnd();
  // The next piece in ascending order of offset. REQUIRES: !AtEnd().
  Piece Next();

 private:
  bool StraightRun(uint64_t start, Piece* piece);
  Piece MergedRun(uint64_t start);
  Piece ExtentAlone(uint64_t start);

  const ExtentList& extents_;
  const PlanOptions options_;
  size_t next_ = 0;    // the first extent with bytes still to plan
  uint64_t from_ = 0;  // everything wanted before this offset is planned
};

// Pieces of a write. Only whole pages go around the page cache; what is left at the edges of
// contiguous extents goes through it (`edge`).
// REQUIRES: the extents do not overlap; unit_bytes is kPageBytes, or 1 for a buffered file.
class WritePlanner {
 public:
  WritePlanner(const ExtentList& extents, const PlanOptions& options)
      : extents_(extents), options_(options) {}

  bool AtEnd();
  Piece Next();  // REQUIRES: !AtEnd().

 private:
  const ExtentList& extents_;
  const PlanOptions options_;
  size_t next_ = 0;
  uint64_t from_ = 0;
};

// Copies a piece's bytes between its bounce memory and the memory of its extents.
void CopyOut(const ExtentList& extents, const Piece& piece, const std::byte* bounce);
void CopyIn(const ExtentList& extents, const Piece& piece, std::byte* bounce);

}  // namespace outcrop::disk
