// Expand: a graph -> its Kronecker product with a small random kernel: the same shape of degrees
// and communities, many times the size (Leskovec et al., 2010; Ginex builds its data sets so).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace outcrop::ingest {

// Node v of copy j becomes node j * num_nodes + v. An edge u -> v becomes, independently for each
// pair of copies (i, j), an edge from u of copy i to v of copy j with probability kernel[i][j].
// Thread-safe: constant after construction.
class Expansion {
 public:
  // `kernel` is copies x copies, row by row, entries 0 to 1.
  Expansion(uint64_t num_nodes, uint64_t copies, std::span<const double> kernel, uint64_t seed);

  // In-neighbours, in copy `copy`, of consecutive nodes whose in-neighbours are given: `indptr` has
  // one entry more than there are nodes, and indices[k] is edge indptr[0] + k of the graph.
  // Writes the new lists one after the other, and each list's length; returns their sum.
  // REQUIRES: out has room for indices.size() * copies entries.
  template <typename IndexIn, typename IndexOut>
  size_t Expand(uint64_t copy, std::span<const int64_t> indptr, std::span<const IndexIn> indices,
                std::span<IndexOut> out, std::span<int64_t> degrees) const;

 private:
  const uint64_t num_nodes_, copies_, seed_;
  std::vector<uint64_t> thresholds_;  // of kernel[i][j], in 1/2^32
};

}  // namespace outcrop::ingest
