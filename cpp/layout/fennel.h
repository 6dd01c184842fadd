// Fennel: neighbour lists in the order of nodes -> the part of each node, with few edges between
// parts (Tsourakakis et al., "FENNEL", WSDM 2014), in one pass or several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "layout/list_stream.h"

namespace outcrop::layout {

// What an assignment has for a node: its part and these bits.
inline constexpr uint32_t kUnassigned = uint32_t{1} << 31;  // in place of a part it has a group
inline constexpr uint32_t kSeed = uint32_t{1} << 30;        // a training node
inline constexpr uint32_t kPartMask = kSeed - 1;

// Marks nodes as training nodes. REQUIRES: ids are nodes.
void MarkSeeds(std::span<const int64_t> ids, std::span<uint32_t> assignment);
// Leaves the parts alone.
void UnmarkSeeds(std::span<uint32_t> assignment);
// Each part becomes a group, whose nodes are not assigned.
void MakeGroups(std::span<uint32_t> assignment);

// What nodes are divided into: groups, whose nodes are known, each into parts of its own.
struct FennelLevel {
  std::vector<uint32_t> first_part;  // of each group; and, last, how many parts there are
  std::vector<double> degree;        // of each group: edges within it per node of it
  // Of each part: how many nodes and training nodes it should have, and may have at most.
  std::vector<double> target, seed_target;
  std::vector<uint64_t> most, most_seeds;
  double gamma = 2;
  uint64_t seed = 0;   // of ties
  bool bloom = false;  // neighbours in a part are counted by its Bloom filter
};

// The parts of each group by ascending key, of equals by a random order.
class PartHeap {
 public:
  PartHeap(std::span<const uint32_t> first_part, const std::vector<uint64_t>& ties);

  void Set(uint32_t part, double key);
  double key(uint32_t part) const { return keys_[part]; }
  // The part with the lowest key. REQUIRES: the group has a part.
  uint32_t Lowest(uint32_t group) const { return heap_[first_[group]]; }

 private:
  bool Before(uint32_t a, uint32_t b) const {
    return keys_[a] != keys_[b] ? keys_[a] < keys_[b] : ties_[a] < ties_[b];
  }
  void Put(size_t at, uint32_t part) {
    heap_[at] = part;
    place_[part] = static_cast<uint32_t>(at);
  }

  // Constant after construction
  const std::vector<uint64_t>& ties_;
  const std::vector<uint32_t> first_;
  std::vector<uint32_t> group_;

  std::vector<double> keys_;
  std::vector<uint32_t> heap_;   // a binary heap per group
  std::vector<uint32_t> place_;  // of each part in it
};

// One Bloom filter per part, each as large as the nodes that its part may have ask for.
class PartFilters {
 public:
  static constexpr double kFalsePositives = 0.01;
  static constexpr uint32_t kHashes = 7;  // the best number, for so many

  explicit PartFilters(std::span<const uint64_t> most);

  // Where a node's bits are, in a filter of any size: its i-th is start + i * step.
  struct Hash {
    explicit Hash(uint64_t node);
    uint64_t start, step;
  };
  void Add(uint32_t part, Hash hash);
  bool Has(uint32_t part, Hash hash) const;

  static uint64_t Bits(uint64_t nodes);  // for a part of so many

 private:
  std::vector<uint64_t> first_bit_;  // of each part, and where the last ends
  std::vector<uint64_t> words_;
};

// Assigns each node as its list passes by, to the part P of its group with the highest
//
//   neighbours in P - penalty(nodes of P), and for training nodes - penalty(training nodes of P)
//
// where penalty(x) = gamma * degree * (x / target)^(gamma - 1): FENNEL's alpha * gamma *
// |P|^(gamma - 1), where alpha = k^(gamma - 1) * m / n^gamma, m being entries of lists.
// Full parts take no more; of training nodes only where another part has room. Neighbours count
// that have a part by then: in the first pass those before the node, in later ones all.
//
// Keeps about 100 bytes per part. Not thread-safe.
template <typename Index>
class Fennel {
 public:
  // REQUIRES: every node of `assignment` is unassigned, in a group of `level`, or in one of its
  // parts; groups have as much room as nodes.
  Fennel(std::span<uint32_t> assignment, FennelLevel level);
  Fennel(const Fennel&) = delete;

  // See ListStream::Walk.
  ListStream::Taken Add(std::span<const int64_t> offsets, std::span<const Index> entries);

  // The next pass begins: nodes leave their part when their list comes, and are assigned again.
  // Throws std::invalid_argument where parts have filters, from which nothing can be removed.
  void Restart();

  int64_t num_edges() const { return stream_.num_edges(); }  // of this pass, so far

 private:
  void Begin(int64_t node);
  void Count(std::span<const Index> neighbors, const Index* ahead_end);
  void CountByFilters(std::span<const Index> neighbors);
  void End(int64_t node);
  void Meet(uint32_t part) {
    if (counts_[part]++ == 0) touched_.push_back(part);
  }
  uint32_t Best() const;
  void Change(uint32_t part, uint64_t by);  // the node joins its part (1) or leaves it (-1)
  double Penalty(uint32_t part, uint64_t count, double target) const;
  void SetKeys(uint32_t part);

  // Constant after construction
  const std::span<uint32_t> assignment_;
  const FennelLevel level_;
  std::vector<uint32_t> group_of_;  // of each part
  std::vector<uint64_t> ties_;      // of each part

  std::vector<uint64_t> nodes_, seeds_;  // of each part
  PartHeap by_nodes_, by_seeds_;         // penalties for other nodes, and for training nodes
  std::optional<PartFilters> filters_;
  ListStream stream_;

  // The node whose list is on the way
  uint32_t group_ = 0;
  bool is_seed_ = false;
  std::vector<uint32_t> counts_;   // of each part
  std::vector<uint32_t> touched_;  // parts whose counts are not 0
};

}  // namespace outcrop::layout
