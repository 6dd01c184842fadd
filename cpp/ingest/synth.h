// Synth: random graphs, features and labels, each item a pure function of its number and the seed.
// So any range can be made by any thread, in any order, in no memory but its output.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "random/permutation.h"

namespace outcrop::ingest {

// R-MAT (Chakrabarti et al., 2004): each bit of an edge's ends falls into one of four quadrants
// with probabilities a, b, c and the rest. Nodes are relabelled at random, since hot nodes would
// otherwise be neighbours on disk.
class RmatGraph {
 public:
  // REQUIRES: num_nodes >= 1; a, b, c >= 0, a + b + c <= 1; a >= 2^-16 unless num_nodes is a power
  // of two, since ends beyond the last node are drawn again, for ever where a is 0.
  RmatGraph(uint64_t num_nodes, double a, double b, double c, uint64_t seed);

  // Writes edges [first, first + out.size()).
  template <typename Record>
  void Edges(uint64_t first, std::span<Record> out) const;

 private:
  const uint64_t num_nodes_;
  const int levels_;
  std::array<uint32_t, 3> thresholds_;  // of a, a + b, a + b + c, in 1/65536
  const uint64_t seed_;
  const random::Permutation<> relabel_;
};

// Communities: with probability `homophily` both ends of an edge are in one community, else the
// source is any node. Ends follow power laws: a target, or a source in the same community, is of
// rank n * u^2, any other source of rank n * u^3 (degrees fall as rank^(-1/2), rank^(-2/3)).
// Communities are dealt out to classes in turn, so that neighbours tell labels.
class CommunityGraph {
 public:
  // REQUIRES: 1 <= classes <= communities <= num_nodes; 0 <= homophily <= 1.
  CommunityGraph(uint64_t num_nodes, uint64_t communities, uint64_t classes, double homophily,
                 uint64_t seed);

  template <typename Record>
  void Edges(uint64_t first, std::span<Record> out) const;

  // Labels of nodes [first, first + out.size()).
  void Labels(uint64_t first, std::span<int64_t> out) const;

 private:
  // Rank r * communities + k is number r of community k; relabel_ hides this order.
  const uint64_t num_nodes_, communities_, classes_;
  const uint64_t threshold_;  // of homophily, in 1/2^32
  const uint64_t seed_;
  const random::Permutation<> relabel_;  // rank -> node
};

// Uniformly random labels.
void RandomLabels(uint64_t classes, uint64_t seed, uint64_t first, std::span<int64_t> out);

// Nodes [first, first + out.size()) of a random order of all nodes: any prefix is a random sample.
void RandomOrder(uint64_t num_nodes, uint64_t seed, uint64_t first, std::span<int64_t> out);

// Features: row = signal * centroid(label) + noise. Noise is the sum of four uniform 16-bit
// numbers, scaled to unit variance: close to normal, exact on every machine. A centroid's entries
// are +1 or -1. A negative label has no centroid.
void Features(uint64_t seed, double signal, uint64_t first, std::span<const int64_t> labels,
              size_t dim, std::span<float> out);

}  // namespace outcrop::ingest
