// Topology: where the sampler gets neighbour lists from, a whole frontier at a time.
#pragma once

#include <cstdint>
#include <span>

#include "cache/offsets.h"
#include "threads/pool.h"

namespace outcrop::sample {

// A node's neighbour list: entries [begin, begin + degree) of the graph's edges.
struct List {
  int64_t begin = 0;
  int64_t degree = 0;
};

// What was drawn for a frontier: edges [first[i], first[i + 1]) of `edge_ids`, ascending, belong
// to nodes[i].
struct Drawn {
  std::span<const int64_t> nodes;
  std::span<const List> lists;
  std::span<const uint64_t> first;
  std::span<const int64_t> edge_ids;
};

// A source serves frontiers, since all the gain is there: first the degrees, from which positions
// are drawn, and then only the entries at those positions are fetched, never whole lists.
// Implementations say whether they are thread-safe.
class Topology {
 public:
  virtual ~Topology() = default;

  virtual int64_t num_nodes() const = 0;
  virtual int64_t num_edges() const = 0;

  // The list of each node. `pool` may be used to do it in parallel.
  virtual void Lists(std::span<const int64_t> nodes, threads::Pool& pool,
                     std::span<List> lists) = 0;

  // The neighbour at each drawn edge. REQUIRES: neighbours.size() == drawn.edge_ids.size().
  virtual void Fetch(const Drawn& drawn, threads::Pool& pool, std::span<int64_t> neighbours) = 0;
};

// Lists by their offsets, plain ones or compressed ones.
template <typename Offsets>
void ListsOf(const Offsets& offsets, std::span<const int64_t> nodes, threads::Pool& pool,
             std::span<List> lists);

// CSC arrays that can be addressed: in memory, or memory-mapped. Thread-safe.
template <typename Index>
class ArrayTopology final : public Topology {
 public:
  // REQUIRES: both outlive this object.
  ArrayTopology(std::span<const int64_t> indptr, std::span<const Index> indices)
      : offsets_(indptr), indices_(indices) {}

  int64_t num_nodes() const override { return offsets_.num_nodes(); }
  int64_t num_edges() const override { return static_cast<int64_t>(indices_.size()); }
  void Lists(std::span<const int64_t> nodes, threads::Pool& pool, std::span<List> lists) override {
    ListsOf(offsets_, nodes, pool, lists);
  }
  void Fetch(const Drawn& drawn, threads::Pool& pool, std::span<int64_t> neighbours) override;

 private:
  cache::PlainOffsets offsets_;
  std::span<const Index> indices_;
};

}  // namespace outcrop::sample
