// Frontier: the step that both samplers share, nodes -> drawn edges and their neighbours.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>

#include "memory/buffer.h"
#include "sample/draw.h"
#include "sample/topology.h"
#include "threads/pool.h"

namespace outcrop::sample {

// A graph whose arrays contradict each other: a damaged file.
class BadTopology : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Not thread-safe: one per sampler.
class Frontier {
 public:
  Frontier(Topology& topology, Replace replace, threads::Pool& pool)
      : topology_(topology), replace_(replace), pool_(pool) {}

  // Draws `fanout` neighbours of each node and fetches them; `roots` (empty: 0 for all) enter the
  // keys. The drawn edges are appended to `edge_ids`. Throws BadTopology, so that whatever uses
  // the result may trust it.
  void Expand(std::span<const int64_t> nodes, std::span<const uint32_t> roots, uint64_t hop_key,
              int64_t fanout, memory::Buffer<int64_t>& edge_ids);

  // What the last Expand drew: edges [first()[i], first()[i + 1]) belong to node i.
  std::span<const uint64_t> first() const { return first_; }
  std::span<const int64_t> neighbours() const { return neighbours_; }

  uint64_t capacity_bytes() const {
    return lists_.capacity_bytes() + first_.capacity_bytes() + neighbours_.capacity_bytes();
  }

 private:
  void CheckList(int64_t node, const List& list) const;
  void CheckNeighbours(std::span<const int64_t> edge_ids) const;

  Topology& topology_;
  const Replace replace_;
  threads::Pool& pool_;
  memory::Buffer<List> lists_;
  memory::Buffer<uint64_t> first_;
  memory::Buffer<int64_t> neighbours_;
};

}  // namespace outcrop::sample
