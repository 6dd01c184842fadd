// Paged topology: CSC arrays in files, through the page cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "disk/file.h"
#include "disk/guarded_map.h"
#include "sample/topology.h"

namespace outcrop::sample {

// As a memory map without readahead: it has no memory of its own, pages that are used stay as long
// as there is room for them, and each thread of a pool waits for one page at a time. But a file
// that was truncated, or a drive that fails, is an error. Thread-safe.
template <typename Index>
class PagedTopology final : public Topology {
 public:
  // A file of an array, whose entries begin at byte `base`.
  struct Array {
    std::shared_ptr<const disk::File> file;
    uint64_t base = 0;
  };

  // `num_nodes` lists of `num_edges` entries together. Throws disk::IoError; BadTopology where
  // indptr does not begin at 0 and end at the number of edges.
  PagedTopology(const Array& indptr, const Array& indices, int64_t num_nodes, int64_t num_edges);

  int64_t num_nodes() const override { return num_nodes_; }
  int64_t num_edges() const override { return num_edges_; }
  // Both also throw disk::IoError.
  void Lists(std::span<const int64_t> nodes, threads::Pool& pool, std::span<List> lists) override;
  void Fetch(const Drawn& drawn, threads::Pool& pool, std::span<int64_t> neighbours) override;

 private:
  disk::GuardedMap indptr_, indices_;
  // Constant after construction
  const uint64_t indptr_base_, indices_base_;
  const int64_t num_nodes_, num_edges_;
};

}  // namespace outcrop::sample
