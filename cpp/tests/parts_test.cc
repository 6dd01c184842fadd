// Parts: nodes assigned as their lists stream by, against a slow model; counts, filters, lists.
#include "layout/parts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "layout/fennel.h"
#include "random/philox.h"

namespace outcrop {
namespace {

using layout::Fennel;
using layout::FennelLevel;
using layout::kPartMask;
using layout::kSeed;
using layout::kUnassigned;

struct Graph {
  std::vector<int64_t> indptr{0};
  std::vector<int32_t> indices;
  size_t nodes() const { return indptr.size() - 1; }
};

// Communities of `size` nodes; `within` of 10 edges stay in theirs.
Graph Communities(size_t nodes, size_t size, size_t degree, uint32_t within, uint32_t seed) {
  std::mt19937 random(seed);
  Graph graph;
  for (size_t v = 0; v < nodes; ++v) {
    const size_t count = random() % (2 * degree + 1);
    for (size_t i = 0; i < count; ++i) {
      const size_t near = v / size * size + random() % size;
      const size_t u = random() % 10 < within ? std::min(near, nodes - 1) : random() % nodes;
      graph.indices.push_back(static_cast<int32_t>(u));
    }
    graph.indptr.push_back(static_cast<int64_t>(graph.indices.size()));
  }
  return graph;
}

FennelLevel OneGroup(const Graph& graph, uint32_t parts, double most, double seeds) {
  FennelLevel level;
  const auto n = static_cast<double>(graph.nodes());
  level.first_part = {0, parts};
  level.degree = {static_cast<double>(graph.indices.size()) / n};
  level.target.assign(parts, n / parts);
  level.most.assign(parts, static_cast<uint64_t>(std::ceil(most * n / parts)));
  level.seed_target.assign(parts, seeds / parts);
  level.most_seeds.assign(parts, static_cast<uint64_t>(std::ceil(most * seeds / parts)));
  level.seed = 7;
  return level;
}

// A pass, with offsets and entries cut into pieces of any size.
template <typename Pass>
void Feed(Pass& pass, const Graph& graph, size_t nodes, size_t entries) {
  size_t node = 0, edge = 0;
  while (node < graph.nodes()) {
    const size_t last = std::min(node + nodes, graph.nodes());
    const size_t end = std::min(edge + entries, graph.indices.size());
    const auto taken = pass.Add(std::span(graph.indptr).subspan(node, last - node + 1),
                                std::span<const int32_t>(graph.indices).subspan(edge, end - edge));
    REQUIRE((taken.nodes > 0 || taken.entries > 0));
    node += taken.nodes;
    edge += taken.entries;
  }
  CHECK(edge == graph.indices.size());
  CHECK(pass.num_edges() == static_cast<int64_t>(graph.indices.size()));
}

// The same by looking at every part for every node.
std::vector<uint32_t> Slow(const Graph& graph, const FennelLevel& level,
                           std::vector<uint32_t> given, int passes) {
  const size_t parts = level.most.size();
  std::vector<uint64_t> nodes(parts), seeds(parts), ties(parts);
  for (size_t p = 0; p < parts; ++p) {
    ties[p] = random::Low64(random::Draw(level.seed, random::Purpose::kPartTie, p));
  }
  const auto group_of = [&](uint32_t part) {
    size_t group = 0;
    while (level.first_part[group + 1] <= part) ++group;
    return group;
  };
  for (int pass = 0; pass < passes; ++pass) {
    for (size_t v = 0; v < graph.nodes(); ++v) {
      const bool is_seed = (given[v] & kSeed) != 0;
      size_t group = given[v] & kPartMask;
      if ((given[v] & kUnassigned) == 0) {
        --nodes[given[v] & kPartMask];
        seeds[given[v] & kPartMask] -= is_seed ? 1 : 0;
        group = group_of(given[v] & kPartMask);
      }
      given[v] = kUnassigned;
      const auto penalty = [&](uint64_t count, double target) {
        if (count == 0 || target <= 0) return 0.0;
        return level.gamma * level.degree[group] *
               std::pow(static_cast<double>(count) / target, level.gamma - 1);
      };
      size_t best = parts;
      double score = 0;
      for (int attempt = 0; attempt < 2 && best == parts; ++attempt) {
        for (size_t p = level.first_part[group]; p < level.first_part[group + 1]; ++p) {
          if (nodes[p] >= level.most[p]) continue;
          const bool seed_rule = is_seed && attempt == 0;
          if (seed_rule && seeds[p] >= level.most_seeds[p]) continue;
          double key = penalty(nodes[p], level.target[p]);
          if (seed_rule) key += penalty(seeds[p], level.seed_target[p]);
          uint32_t count = 0;
          for (auto e = graph.indptr[v]; e < graph.indptr[v + 1]; ++e) {
            count +=
                given[static_cast<size_t>(graph.indices[static_cast<size_t>(e)])] % kSeed == p &&
                        given[static_cast<size_t>(graph.indices[static_cast<size_t>(e)])] <
                            kUnassigned
                    ? 1
                    : 0;
          }
          const double mine = count - key;
          if (best == parts || mine > score || (mine == score && ties[p] < ties[best])) {
            best = p;
            score = mine;
          }
        }
      }
      REQUIRE(best < parts);
      ++nodes[best];
      seeds[best] += is_seed ? 1 : 0;
      given[v] = static_cast<uint32_t>(best) | (is_seed ? kSeed : 0);
    }
  }
  return given;
}

TEST_CASE("nodes are assigned as a look at every part says, however lists are cut") {
  const Graph graph = Communities(300, 25, 6, 8, 3);
  std::vector<uint32_t> fresh(graph.nodes(), kUnassigned);
  for (size_t v = 0; v < graph.nodes(); v += 3) fresh[v] |= kSeed;
  for (const double gamma : {1.0, 1.5, 2.0}) {
    for (const int passes : {1, 3}) {
      auto level = OneGroup(graph, 13, 1.1, 100);
      level.gamma = gamma;
      const auto expected = Slow(graph, level, fresh, passes);
      for (const size_t piece : {size_t{1}, size_t{7}, size_t{100000}}) {
        auto assignment = fresh;
        Fennel<int32_t> fennel(assignment, level);
        for (int pass = 0; pass < passes; ++pass) {
          if (pass > 0) fennel.Restart();
          Feed(fennel, graph, piece, piece + 2);
        }
        CHECK(assignment == expected);
      }
    }
  }
}

TEST_CASE("nodes stay in their groups, and only neighbours in them count") {
  const Graph graph = Communities(240, 20, 8, 7, 4);
  FennelLevel level;
  level.first_part = {0, 3, 5, 9};
  level.degree = {3, 5, 4};
  level.target.assign(9, 27);
  level.most.assign(9, 45);
  level.seed_target.assign(9, 9);
  level.most_seeds.assign(9, 12);
  std::vector<uint32_t> fresh(graph.nodes());
  for (size_t v = 0; v < fresh.size(); ++v) {
    fresh[v] = kUnassigned | static_cast<uint32_t>(v / 20 % 3) | (v % 4 == 0 ? kSeed : 0);
  }
  auto assignment = fresh;
  Fennel<int32_t> fennel(assignment, level);
  Feed(fennel, graph, 50, 31);
  fennel.Restart();
  Feed(fennel, graph, 50, 31);
  CHECK(assignment == Slow(graph, level, fresh, 2));
  for (size_t v = 0; v < fresh.size(); ++v) {
    const uint32_t part = assignment[v] & kPartMask, group = fresh[v] & kPartMask;
    CHECK((part >= level.first_part[group] && part < level.first_part[group + 1]));
    CHECK((assignment[v] & kSeed) == (fresh[v] & kSeed));
  }
}

TEST_CASE("full parts take no more, and training nodes take what is left") {
  const Graph graph = Communities(101, 101, 10, 10, 5);  // all want to be together
  auto level = OneGroup(graph, 10, 1.0, 50);
  level.most.assign(10, 11);
  level.most_seeds.assign(10, 1);  // too few for 50: it cannot be kept
  std::vector<uint32_t> assignment(graph.nodes(), kUnassigned);
  for (size_t v = 0; v < 50; ++v) assignment[v] |= kSeed;
  Fennel<int32_t> fennel(assignment, level);
  for (int pass = 0; pass < 3; ++pass) {
    if (pass > 0) fennel.Restart();
    Feed(fennel, graph, 1000, 1000);
    std::vector<uint64_t> counts(10);
    for (const uint32_t value : assignment) ++counts[value & kPartMask];
    CHECK(*std::max_element(counts.begin(), counts.end()) <= 11);
  }
}

TEST_CASE("a filter has all that it was given, and little else") {
  const std::vector<uint64_t> most{1000, 10, 0};
  layout::PartFilters filters(most);
  for (uint64_t node = 0; node < 1000; ++node) {
    filters.Add(0, layout::PartFilters::Hash(node * 37));
  }
  int wrong = 0;
  for (uint64_t node = 0; node < 100000; ++node) {
    const layout::PartFilters::Hash hash(node);
    const bool there = node % 37 == 0 && node / 37 < 1000;
    if (there) CHECK(filters.Has(0, hash));
    wrong += !there && filters.Has(0, hash) ? 1 : 0;
    CHECK(!filters.Has(1, hash));
  }
  CHECK(wrong < 2000);                             // 1 % expected
  CHECK(layout::PartFilters::Bits(1000) == 9586);  // 1000 ln(100) / ln(2)^2, not the whole graph's
}

TEST_CASE("by filters, nodes go where exact counts send them, but for few") {
  const Graph graph = Communities(400, 40, 6, 9, 6);
  auto level = OneGroup(graph, 10, 1.1, 0);
  std::vector<uint32_t> exact(graph.nodes(), kUnassigned), bloom = exact;
  Fennel<int32_t> by_counts(exact, level);
  Feed(by_counts, graph, 64, 64);
  level.bloom = true;
  Fennel<int32_t> by_filters(bloom, level);
  Feed(by_filters, graph, 64, 64);
  const auto inside = [&graph](std::vector<uint32_t>& assignment) {
    std::vector<uint64_t> nodes(10), entries(10), within(10);
    layout::PartCounts<int32_t> counts(assignment, {nodes, entries, within, {}});
    Feed(counts, graph, 64, 64);
    CHECK(std::accumulate(entries.begin(), entries.end(), uint64_t{0}) == graph.indices.size());
    return static_cast<double>(std::accumulate(within.begin(), within.end(), uint64_t{0}));
  };
  CHECK(inside(bloom) > 0.9 * inside(exact));
  CHECK_THROWS_AS(by_filters.Restart(), std::invalid_argument);
}

TEST_CASE("lists of parts come in the order of parts and nodes") {
  const Graph graph = Communities(97, 10, 5, 5, 8);
  std::vector<uint32_t> assignment(graph.nodes());
  for (size_t v = 0; v < assignment.size(); ++v) {
    assignment[v] = static_cast<uint32_t>(v * 7 % 5) | (v % 2 == 0 ? kSeed : 0);
  }
  std::vector<uint64_t> nodes(5), entries(5), within(5);
  std::vector<uint32_t> cross(graph.nodes());
  layout::PartCounts<int32_t> counts(assignment, {nodes, entries, within, cross});
  Feed(counts, graph, 3, 11);
  std::vector<int64_t> first_node{0, static_cast<int64_t>(nodes[1])};
  std::vector<int64_t> first_entry{0, static_cast<int64_t>(entries[1])};
  std::vector<int32_t> out_nodes(nodes[1] + nodes[2]), out(entries[1] + entries[2]);
  std::vector<int64_t> begins(out_nodes.size());
  layout::PartLists<int32_t> lists(assignment, 1,
                                   {first_node, first_entry, out_nodes, begins, out, 1000});
  Feed(lists, graph, 5, 13);
  std::vector<uint32_t> named(graph.nodes());
  size_t at = 0, entry = 0;
  for (uint32_t part = 0; part < 5; ++part) {
    for (size_t v = 0; v < graph.nodes(); ++v) {
      if ((assignment[v] & kPartMask) != part) continue;
      const bool wanted = part == 1 || part == 2;
      if (wanted) {
        REQUIRE(out_nodes[at] == static_cast<int32_t>(v));
        REQUIRE(begins[at++] == 1000 + static_cast<int64_t>(entry));
      }
      for (auto e = graph.indptr[v]; e < graph.indptr[v + 1]; ++e) {
        const int32_t u = graph.indices[static_cast<size_t>(e)];
        if (wanted) REQUIRE(out[entry++] == u);
        const auto other = static_cast<size_t>(u);
        named[other] += (assignment[other] & kPartMask) != part ? 1 : 0;
      }
    }
  }
  CHECK(at == out_nodes.size());
  CHECK(entry == out.size());
  CHECK(named == cross);
}

TEST_CASE("a graph that contradicts itself is refused") {
  std::vector<uint32_t> assignment(3, kUnassigned);
  const Graph graph{{0, 1, 2, 3}, {0, 1, 2}};
  const auto level = OneGroup(graph, 2, 2, 0);
  const auto add = [&](std::vector<int64_t> offsets, std::vector<int32_t> entries) {
    Fennel<int32_t> fennel(assignment, level);
    fennel.Add(offsets, entries);
  };
  CHECK_THROWS_AS(add({0, 2, 1, 3}, {0, 1, 2}), layout::BadBlock);
  CHECK_THROWS_AS(add({1, 2, 3, 3}, {0, 1, 2}), layout::BadBlock);
  CHECK_THROWS_AS(add({0, 1, 2, 3}, {0, 3, 2}), layout::BadBlock);
  CHECK_THROWS_AS(add({0, 1, 2, 3}, {0, -1, 2}), layout::BadBlock);
  CHECK_THROWS_AS(add({0, 1, 2, 3, 3}, {0, 1, 2}), layout::BadBlock);
}

}  // namespace
}  // namespace outcrop
