// CSC: sorted edge records -> indices, edge numbers and the offsets of each node's list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace outcrop::ingest {

// Writes the three arrays piece by piece, as their records arrive. Not thread-safe.
class CscWriter {
 public:
  explicit CscWriter(int64_t num_nodes) : num_nodes_(num_nodes) {}

  struct Wrote {
    size_t records = 0;  // taken; as many entries of indices and numbers were written
    size_t offsets = 0;  // entries of indptr that were written
  };

  // Takes records until they end or `indptr` is full. `indices` and `numbers` (empty: not wanted)
  // have room for all of them.
  // REQUIRES: records sorted by target, across calls; ids below num_nodes.
  template <typename Record, typename Index>
  Wrote Write(std::span<const Record> records, std::span<Index> indices, std::span<int64_t> numbers,
              std::span<int64_t> indptr);

  // After the last record: the offsets that are still missing, as many as fit. Zero: none is.
  size_t Finish(std::span<int64_t> indptr);

  int64_t num_edges() const { return num_edges_; }

 private:
  // Writes offsets of nodes up to and including `node`; false where there was no room for all.
  bool OffsetsUpTo(int64_t node, std::span<int64_t> indptr, size_t* written);

  const int64_t num_nodes_;
  int64_t next_offset_ = 0;  // the node whose offset is to be written next; num_nodes_ is one too
  int64_t num_edges_ = 0;
};

}  // namespace outcrop::ingest
