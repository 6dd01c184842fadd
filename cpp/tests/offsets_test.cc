// Offsets of neighbour lists: compressed ones are what they were made of, whatever the degrees.
#include "cache/offsets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sample/topology.h"
#include "threads/pool.h"

namespace outcrop::cache {
namespace {

std::vector<int64_t> IndptrOf(const std::vector<int64_t>& degrees) {
  std::vector<int64_t> indptr{0};
  for (int64_t degree : degrees) indptr.push_back(indptr.back() + degree);
  return indptr;
}

std::unique_ptr<CompressedOffsets> Compressed(const std::vector<int64_t>& indptr,
                                              size_t at_a_time = 1000) {
  const auto num_nodes = static_cast<int64_t>(indptr.size()) - 1;
  auto offsets = std::make_unique<CompressedOffsets>(num_nodes, indptr.back());
  for (size_t first = 0; first < indptr.size(); first += at_a_time) {
    CHECK(!offsets->complete());
    offsets->Append({indptr.data() + first, std::min(at_a_time, indptr.size() - first)});
  }
  CHECK(offsets->complete());
  CHECK(offsets->memory_bytes() == CompressedOffsets::Bytes(num_nodes, indptr.back()));
  return offsets;
}

// How many lists differ from what indptr says, one by one and in sequence.
size_t Wrong(const CompressedOffsets& offsets, const std::vector<int64_t>& indptr) {
  size_t wrong = 0;
  const auto compare = [&](int64_t node, Bounds bounds) {
    const auto at = static_cast<size_t>(node);
    if (bounds.begin != indptr[at] || bounds.end != indptr[at + 1]) ++wrong;
  };
  int64_t visited = 0;
  offsets.ForAll([&](int64_t node, Bounds bounds) {
    if (node != visited++) ++wrong;
    compare(node, bounds);
  });
  CHECK(visited == offsets.num_nodes());
  for (int64_t node = 0; node < offsets.num_nodes(); ++node) compare(node, offsets.At(node));
  return wrong;
}

void CheckEqual(const std::vector<int64_t>& degrees) {
  const auto indptr = IndptrOf(degrees);
  const auto offsets = Compressed(indptr);
  CHECK(offsets->num_nodes() == static_cast<int64_t>(degrees.size()));
  CHECK(offsets->num_edges() == indptr.back());
  CHECK(Wrong(*offsets, indptr) == 0);
}

// Mostly short lists, some none, some long.
std::vector<int64_t> RandomDegrees(size_t nodes, int64_t most, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> degrees(nodes);
  for (int64_t& degree : degrees) {
    const auto limit = static_cast<uint64_t>(random() % 100 == 0 ? 1000 * most : most);
    degree = static_cast<int64_t>(random() % (limit + 1));
  }
  return degrees;
}

TEST_CASE("offsets: graphs without nodes, without edges, of one node") {
  CheckEqual({});
  CheckEqual({0});
  CheckEqual(std::vector<int64_t>(10'000, 0));
  CheckEqual({7});
  CheckEqual({int64_t{1} << 62});
}

TEST_CASE("offsets: random degrees, in parts of any size") {
  for (int64_t most : {0, 1, 2, 10, 1000}) {
    for (size_t nodes : {1, 2, 63, 64, 127, 128, 129, 255, 256, 5000}) {
      CheckEqual(RandomDegrees(nodes, most, static_cast<uint32_t>(nodes)));
    }
  }
  const auto indptr = IndptrOf(RandomDegrees(3000, 20, 1));
  for (size_t at_a_time : {1, 2, 127, 128, 3001}) {
    CHECK(Wrong(*Compressed(indptr, at_a_time), indptr) == 0);
  }
}

TEST_CASE("offsets: runs of empty lists, and a list as long as all others") {
  std::vector<int64_t> degrees = RandomDegrees(4000, 10, 3);
  std::fill_n(degrees.begin() + 500, 2000, 0);
  CheckEqual(degrees);
  for (size_t node : {0, 1, 127, 128, 500, 3998, 3999}) {
    auto with = degrees;
    with[node] = 50'000'000;  // its place and the next one are many blocks apart
    CheckEqual(with);
    with.assign(degrees.size(), 0);
    with[node] = 1'000'000;
    CheckEqual(with);
  }
}

TEST_CASE("offsets: beyond 2^32, and up to the most that there is") {
  for (int bits : {31, 33, 40, 50}) {
    std::vector<int64_t> degrees = RandomDegrees(1000, int64_t{1} << (bits - 20), 5);
    degrees[300] = int64_t{1} << bits;
    CheckEqual(degrees);
    degrees[301] = (int64_t{1} << 62) - 1;
    CheckEqual(degrees);
  }
}

TEST_CASE("offsets: about six bits per node of degree ten") {
  const int64_t nodes = 100'000'000;
  const double bits = 8.0 * static_cast<double>(CompressedOffsets::Bytes(nodes, 10 * nodes));
  CHECK(bits / static_cast<double>(nodes) < 5.9);
  CHECK(CompressedOffsets::Bytes(0, 0) <= 64 << 10);
}

std::string Refusal(std::vector<int64_t> indptr, int64_t num_nodes, int64_t num_edges) {
  CompressedOffsets offsets(num_nodes, num_edges);
  try {
    offsets.Append(indptr);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return offsets.complete() ? "" : "incomplete";
}

TEST_CASE("offsets: what does not ascend from 0 to the number of edges is refused") {
  CHECK(Refusal({0, 2, 2, 5}, 3, 5) == "");
  CHECK(Refusal({0, 2, 2}, 3, 5) == "incomplete");
  CHECK(Refusal({0, 3, 2, 5}, 3, 5) == "node 1: its list begins at edge 3 and ends at 2");
  CHECK(Refusal({0, 3, -1, 5}, 3, 5) == "node 1: its list begins at edge 3 and ends at -1");
  CHECK(Refusal({1, 2, 2, 5}, 3, 5) == "begins at edge 1");
  CHECK(Refusal({-1, 2, 2, 5}, 3, 5) == "begins at edge -1");
  CHECK(Refusal({0, 2, 2, 4}, 3, 5) == "ends at edge 4, but there are 5 edges");
  CHECK(Refusal({0, 2, 2, 6}, 3, 5) == "ends at edge 6, but there are 5 edges");
  CHECK(Refusal({0, int64_t{1} << 60, 2, 5}, 3, 5) ==
        "goes to edge 1152921504606846976, but there are 5 edges");
  CHECK(Refusal({0, 2, 2, 5, 5}, 3, 5) == "has more than 4 entries");
}

TEST_CASE("offsets: frontiers of many threads have the lists of plain ones") {
  const auto indptr = IndptrOf(RandomDegrees(20'000, 12, 9));
  const auto offsets = Compressed(indptr);
  const PlainOffsets plain(indptr);
  std::vector<std::thread> threads;
  std::vector<size_t> wrong(4);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<uint32_t>(t) + 1);
      std::vector<int64_t> nodes(30'000);
      for (int64_t& node : nodes) node = static_cast<int64_t>(random() % 20'000);
      std::vector<sample::List> found(nodes.size()), expected(nodes.size());
      threads::Pool pool(2);
      sample::ListsOf(*offsets, nodes, pool, found);
      sample::ListsOf(plain, nodes, pool, expected);
      for (size_t i = 0; i < nodes.size(); ++i) {
        wrong[t] +=
            found[i].begin != expected[i].begin || found[i].degree != expected[i].degree ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<size_t>(4));
}

}  // namespace
}  // namespace outcrop::cache
