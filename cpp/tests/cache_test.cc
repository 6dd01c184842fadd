// Caches: the node table against std::map.
#include <doctest/doctest.h>

#include <map>
#include <random>

#include "cache/node_table.h"

namespace outcrop::cache {
namespace {

TEST_CASE("a node table of either kind agrees with a map") {
  for (const auto& [nodes, expected] : {std::pair<int64_t, int64_t>{300, 200}, {1 << 30, 10}}) {
    NodeTable table(nodes, expected);
    CHECK(table.dense() == (nodes == 300));
    std::map<int64_t, uint32_t> model;
    std::mt19937 random(7);
    // Few different nodes, so that they meet and are erased; far apart in the large graph.
    const int64_t stride = nodes / 300;
    for (uint32_t step = 0; step < 20000; ++step) {
      const int64_t node = static_cast<int64_t>(random() % 300) * stride;
      if (random() % 3 == 0) {
        table.Erase(node);
        model.erase(node);
      } else {
        table.Set(node, step);
        model[node] = step;
      }
      const int64_t other = static_cast<int64_t>(random() % 300) * stride;
      const auto found = model.find(other);
      REQUIRE(table.Get(other) == (found == model.end() ? NodeTable::kNone : found->second));
    }
    for (int64_t node = 0; node < 300; ++node) {
      const auto found = model.find(node * stride);
      REQUIRE(table.Get(node * stride) ==
              (found == model.end() ? NodeTable::kNone : found->second));
    }
  }
}

TEST_CASE("the size of a node table is known before it is made") {
  CHECK(NodeTable::Bytes(1000, 1000000) == 4000);
  CHECK(NodeTable::Bytes(int64_t{1} << 40, 1000) == 2048 * 16);
}

}  // namespace
}  // namespace outcrop::cache
