// Cached lists: chosen like a sorted walk would, found again, and a topology over them that gives
// what one in memory gives, whatever is cached and however the disk behaves.
#include "sample/cached_topology.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cache/choose_lists.h"
#include "disk/error.h"
#include "disk/memory.h"
#include "disk/uring.h"
#include "sample/draw.h"
#include "sample/frontier.h"
#include "sample/shadow.h"
#include "tests/scratch.h"

namespace outcrop::sample {
namespace {

using cache::CompressedOffsets;
using cache::ListBlock;
using cache::NeighborLists;
using cache::PlainOffsets;
using disk::EngineKind;
using disk::EngineOptions;

EngineOptions Options(EngineKind kind) {
  EngineOptions options;
  options.kind = kind;
  options.workers = kind == EngineKind::kPool ? 4 : 2;
  options.queue_depth = 16;
  return options;
}

std::vector<EngineOptions> Engines() {
  std::vector<EngineOptions> all{Options(EngineKind::kPool)};
  if (disk::UringRefusal().empty()) all.push_back(Options(EngineKind::kUring));
  return all;
}

// A graph in memory and in a file that has `base` other bytes first.
template <typename Index>
struct Graph {
  Graph(const std::vector<int64_t>& degrees, uint64_t base, uint32_t seed = 1) : base(base) {
    std::minstd_rand random(seed);
    for (int64_t degree : degrees) indptr.push_back(indptr.back() + degree);
    indices.resize(static_cast<size_t>(indptr.back()));
    for (Index& id : indices) id = static_cast<Index>(random() % degrees.size());
    std::vector<std::byte> bytes(base + indices.size() * sizeof(Index));
    if (!indices.empty()) std::memcpy(bytes.data() + base, indices.data(), bytes.size() - base);
    tests::WriteFile(dir.File("indices"), bytes);
    file = disk::File::OpenForRead(dir.File("indices"), disk::Access::kAuto);
  }

  int64_t num_nodes() const { return static_cast<int64_t>(indptr.size()) - 1; }

  tests::ScratchDir dir;
  uint64_t base;
  std::vector<int64_t> indptr{0};
  std::vector<Index> indices;
  std::shared_ptr<disk::File> file;
};

std::unique_ptr<CompressedOffsets> Compressed(const std::vector<int64_t>& indptr) {
  const auto num_nodes = static_cast<int64_t>(indptr.size()) - 1;
  auto offsets = std::make_unique<CompressedOffsets>(num_nodes, indptr.back());
  offsets->Append(indptr);
  return offsets;
}

// The memory of a cache of those nodes whose score is 1, made by the functions that layouts are
// made by, in chunks of an odd size.
template <typename Index>
struct Cached {
  Cached(const Graph<Index>& graph, const std::vector<float>& scores,
         uint64_t room = uint64_t{1} << 40)
      : lists(graph.num_nodes(), sizeof(Index)) {
    std::vector<ListBlock> blocks(ListBlock::Count(graph.num_nodes()));
    chosen = cache::ChooseLists(PlainOffsets(graph.indptr), scores, sizeof(Index), room, blocks);
    std::vector<uint32_t> starts(chosen.lists);
    cache::NumberLists(PlainOffsets(graph.indptr), blocks, starts);
    const uint64_t bytes =
        NeighborLists::Bytes(graph.num_nodes(), sizeof(Index), chosen.lists, chosen.entries);
    memory = disk::AlignedMemory(bytes);
    if (chosen.lists == 0) return;
    std::memcpy(memory.data(), blocks.data(), blocks.size() * sizeof(ListBlock));
    std::memcpy(memory.data() + blocks.size() * sizeof(ListBlock), starts.data(),
                starts.size() * sizeof(uint32_t));
    auto* entries = reinterpret_cast<Index*>(memory.data() + bytes) - chosen.entries;
    cache::Copied copied;
    std::vector<Index> out(777);
    for (size_t first = 0; first < graph.indices.size(); first += out.size()) {
      const size_t count = std::min(out.size(), graph.indices.size() - first);
      copied = cache::CopyLists<Index>(PlainOffsets(graph.indptr), blocks, copied.node,
                                       static_cast<int64_t>(first),
                                       {graph.indices.data() + first, count}, out);
      entries = std::copy_n(out.begin(), copied.entries, entries);
    }
    CHECK(reinterpret_cast<std::byte*>(entries) == memory.data() + bytes);
    Attach();
  }

  void Attach() { lists.Attach({memory.data(), memory.size()}, chosen.lists, chosen.entries); }

  NeighborLists lists;
  cache::Chosen chosen;
  disk::AlignedMemory memory;
};

// `share` of all nodes score 1, the others are passed over by giving them no room.
std::vector<float> SomeScores(int64_t nodes, double share, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<float> scores(static_cast<size_t>(nodes));
  for (float& score : scores) score = random() % 1000 < share * 1000 ? 1.0F : 0.0F;
  return scores;
}

template <typename Index>
uint64_t RoomFor(const Graph<Index>& graph, const std::vector<float>& scores) {
  uint64_t room = 0;
  for (size_t node = 0; node < scores.size(); ++node) {
    const int64_t degree = graph.indptr[node + 1] - graph.indptr[node];
    if (scores[node] > 0 && degree > 0) room += 4 + sizeof(Index) * static_cast<uint64_t>(degree);
  }
  return room;
}

// A frontier as the samplers make it.
struct Frontiers {
  Frontiers(Topology& topology, std::vector<int64_t> wanted, int64_t fanout, uint32_t root_step)
      : nodes(std::move(wanted)), lists(nodes.size()), first(nodes.size() + 1) {
    threads::Pool pool(1);
    topology.Lists(nodes, pool, lists);
    Drawer drawer;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto degree = static_cast<uint64_t>(lists[i].degree);
      std::vector<int64_t> out(DrawCount(degree, fanout, Replace::kNo));
      drawer.Draw(5, static_cast<uint64_t>(nodes[i]), static_cast<uint32_t>(i) * root_step, degree,
                  Replace::kNo, out);
      for (int64_t position : out) edges.push_back(lists[i].begin + position);
      first[i + 1] = edges.size();
    }
  }

  std::vector<int64_t> Fetch(Topology& topology, threads::Pool& pool) const {
    std::vector<int64_t> neighbours(edges.size(), -1);
    topology.Fetch({nodes, lists, first, edges}, pool, neighbours);
    return neighbours;
  }

  std::vector<int64_t> nodes;
  std::vector<List> lists;
  std::vector<uint64_t> first;
  std::vector<int64_t> edges;
};

// Mostly short lists, some none, some of many pages.
std::vector<int64_t> Degrees(size_t nodes, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<int64_t> degrees(nodes);
  for (int64_t& degree : degrees) {
    degree = static_cast<int64_t>(random() % 100 == 0 ? random() % 20000 : random() % 12);
  }
  return degrees;
}

std::vector<int64_t> SomeNodes(size_t count, int64_t nodes, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<int64_t> some(count);
  for (int64_t& node : some) node = static_cast<int64_t>(random() % static_cast<uint64_t>(nodes));
  return some;
}

template <typename Index>
void CheckEqualsArrays(uint64_t base) {
  const Graph<Index> graph(Degrees(3000, 7), base);
  ArrayTopology<Index> arrays(graph.indptr, graph.indices);
  const auto compressed = Compressed(graph.indptr);
  const std::array<std::pair<double, Offsets>, 4> cases{
      {{0.0, graph.indptr}, {0.3, graph.indptr}, {0.3, compressed.get()}, {1.0, graph.indptr}}};
  for (const EngineOptions& options : Engines()) {
    disk::Engine engine(options);
    for (const auto& [share, offsets] : cases) {
      const auto scores = SomeScores(graph.num_nodes(), share, 11);
      Cached<Index> cached(graph, scores, RoomFor(graph, scores));
      CachedTopology<Index> topology(offsets, cached.lists, engine, graph.file, base);
      CHECK(topology.num_nodes() == graph.num_nodes());
      CHECK(topology.num_edges() == static_cast<int64_t>(graph.indices.size()));
      const uint64_t requests = engine.counters().read_requests;
      uint64_t drawn = 0;
      for (uint32_t threads : {1U, 4U}) {
        threads::Pool pool(threads);
        for (int64_t fanout : {0, 1, 10, -1}) {
          // Nodes repeat: with one draw each (root_step 0) and with draws of their own.
          for (uint32_t root_step : {0U, 1U}) {
            const Frontiers frontier(arrays, SomeNodes(2000, 2999, 3), fanout, root_step);
            const auto expected = frontier.Fetch(arrays, pool);
            CHECK(frontier.Fetch(topology, pool) == expected);
            drawn += expected.size();
          }
        }
        CHECK(Frontiers(arrays, {}, 5, 0).Fetch(topology, pool).empty());
      }
      const NeighborLists::Counts& counts = cached.lists.counts();
      CHECK(counts.hit_entries + counts.miss_entries == drawn);
      CHECK((counts.hit_entries == 0) == (share == 0));
      CHECK((counts.miss_entries == 0) == (share == 1));
      if (share == 1) CHECK(engine.counters().read_requests == requests);
    }
  }
}

TEST_CASE("cached topology: equals arrays, whatever is cached") {
  CheckEqualsArrays<int32_t>(4096);
  CheckEqualsArrays<int64_t>(4096);
  CheckEqualsArrays<int32_t>(129);  // entries that straddle pages
}

// The lists of every `step`-th node, as those of partitions are attached.
template <typename Index>
struct Parts {
  Parts(const Graph<Index>& graph, int64_t first, int64_t step) : lists(sizeof(Index)) {
    for (int64_t node = first; node < graph.num_nodes(); node += step) {
      const auto begin = graph.indices.begin() + graph.indptr[static_cast<size_t>(node)];
      const auto end = graph.indices.begin() + graph.indptr[static_cast<size_t>(node) + 1];
      nodes.push_back(node);
      entries.insert(entries.end(), begin, end);
      starts.push_back(static_cast<int64_t>(entries.size()));
    }
    table = disk::AlignedMemory(cache::MacroLists::TableBytes(nodes.size()));
  }

  void Attach() {
    lists.Attach({table.data(), table.size()}, nodes, starts, std::as_bytes(std::span(entries)));
  }

  cache::MacroLists lists;
  std::vector<int64_t> nodes, starts{0};
  std::vector<Index> entries;
  disk::AlignedMemory table;
};

TEST_CASE("cached topology: lists of partitions beside it, which come and go") {
  const Graph<int32_t> graph(Degrees(3000, 7), 4096);
  ArrayTopology<int32_t> arrays(graph.indptr, graph.indices);
  disk::Engine engine(Options(EngineKind::kPool));
  threads::Pool pool(3);
  const auto scores = SomeScores(graph.num_nodes(), 0.3, 11);
  Cached<int32_t> cached(graph, scores, RoomFor(graph, scores));
  Parts<int32_t> odd(graph, 1, 2), all(graph, 0, 1);
  CachedTopology<int32_t> topology(graph.indptr, cached.lists, engine, graph.file, 4096,
                                   &odd.lists);
  const Frontiers frontier(arrays, SomeNodes(2000, 2999, 3), 10, 1);
  const auto expected = frontier.Fetch(arrays, pool);
  const NeighborLists::Counts& counts = cached.lists.counts();
  CHECK(frontier.Fetch(topology, pool) == expected);
  const uint64_t missed = counts.miss_entries;
  CHECK(odd.lists.counts().hit_entries == 0);
  odd.Attach();
  CHECK(frontier.Fetch(topology, pool) == expected);
  CHECK(odd.lists.counts().hit_entries > 0);
  CHECK(counts.miss_entries - missed + odd.lists.counts().hit_entries == missed);
  odd.lists.Detach();
  CHECK(frontier.Fetch(topology, pool) == expected);

  CachedTopology<int32_t> whole(graph.indptr, cached.lists, engine, graph.file, 4096, &all.lists);
  all.Attach();
  const uint64_t requests = engine.counters().read_requests;
  CHECK(frontier.Fetch(whole, pool) == expected);
  CHECK(engine.counters().read_requests == requests);
}

TEST_CASE("macro lists: what contradicts itself is refused") {
  const Graph<int32_t> graph({3, 2, 4}, 64);
  Parts<int32_t> parts(graph, 0, 1);
  const auto refused = [&] { CHECK_THROWS_AS(parts.Attach(), std::invalid_argument); };
  std::swap(parts.starts[1], parts.starts[2]);
  refused();
  std::swap(parts.starts[1], parts.starts[2]);
  parts.nodes[2] = 0;  // twice
  refused();
  parts.nodes[2] = 2;
  parts.entries.pop_back();
  refused();
  parts.entries.push_back(0);
  CHECK_NOTHROW(parts.Attach());
  cache::MacroLists none(4);
  CHECK_NOTHROW(none.Attach({}, {}, std::array<int64_t, 1>{0}, {}));
  CHECK(cache::MacroLists::Reader(none).empty());
  disk::Engine engine(Options(EngineKind::kPool));
  NeighborLists lists(3, 4);
  cache::MacroLists wide(8);
  CHECK_THROWS_AS(CachedTopology<int32_t>(graph.indptr, lists, engine, graph.file, 64, &wide),
                  std::invalid_argument);
}

TEST_CASE("cached topology: a graph without edges, and one without nodes") {
  disk::Engine engine(Options(EngineKind::kPool));
  threads::Pool pool(2);
  const Graph<int32_t> edgeless({0, 0, 0}, 64);
  Cached<int32_t> none(edgeless, {1, 1, 1});
  CachedTopology<int32_t> topology(edgeless.indptr, none.lists, engine, edgeless.file, 64);
  CHECK(Frontiers(topology, {0, 2, 2}, 5, 0).Fetch(topology, pool).empty());
  const Graph<int32_t> empty({}, 64);
  Cached<int32_t> nothing(empty, {});
  CHECK(CachedTopology<int32_t>(empty.indptr, nothing.lists, engine, empty.file, 64).num_nodes() ==
        0);
}

TEST_CASE("cached topology: sizes that contradict each other are refused") {
  disk::Engine engine(Options(EngineKind::kPool));
  const Graph<int32_t> graph({3, 2}, 64);
  NeighborLists lists(2, 4), other(3, 4), wide(2, 8);
  const auto make = [&](NeighborLists& of, uint64_t base) {
    CachedTopology<int32_t>(graph.indptr, of, engine, graph.file, base);
  };
  CHECK_NOTHROW(make(lists, 64));
  CHECK_THROWS_AS(make(lists, 65), std::invalid_argument);
  CHECK_THROWS_AS(make(lists, 1000), std::invalid_argument);
  CHECK_THROWS_AS(make(other, 64), std::invalid_argument);
  CHECK_THROWS_AS(make(wide, 64), std::invalid_argument);
  const CompressedOffsets nothing(2, 5);
  CHECK_THROWS_AS(CachedTopology<int32_t>(&nothing, lists, engine, graph.file, 64),
                  std::invalid_argument);
}

TEST_CASE("cached topology: one transfer; entries of one page are one request") {
  disk::Engine engine(Options(EngineKind::kPool));
  const Graph<int32_t> graph(std::vector<int64_t>(4000, 4), 4096);  // 16 B each: 256 per page
  NeighborLists lists(4000, 4);
  CachedTopology<int32_t> topology(graph.indptr, lists, engine, graph.file, 4096);
  threads::Pool pool(3);
  std::vector<int64_t> nodes(256);
  std::iota(nodes.begin(), nodes.end(), 512);
  std::shuffle(nodes.begin(), nodes.end(), std::minstd_rand(1));
  Frontiers(topology, nodes, 2, 0).Fetch(topology, pool);
  CHECK(engine.counters().read_requests == 1);
  CHECK(engine.counters().bytes_wanted == 256 * 2 * 4);
}

TEST_CASE("cached topology: short, late and reordered reads change nothing") {
  const Graph<int32_t> graph(Degrees(2000, 9), 129);
  ArrayTopology<int32_t> arrays(graph.indptr, graph.indices);
  NeighborLists lists(graph.num_nodes(), 4);
  for (EngineOptions options : Engines()) {
    options.faults = disk::FaultOptions{};
    options.faults->short_every = 3;
    options.faults->delay_us = 100;
    options.faults->reorder = true;
    disk::Engine engine(options);
    CachedTopology<int32_t> topology(graph.indptr, lists, engine, graph.file, 129);
    threads::Pool pool(2);
    const Frontiers frontier(arrays, SomeNodes(500, 1999, 4), 10, 1);
    CHECK(frontier.Fetch(topology, pool) == frontier.Fetch(arrays, pool));
  }
}

TEST_CASE("cached topology: a failing drive is an error of the file, and the next fetch works") {
  const Graph<int32_t> graph(Degrees(2000, 9), 4096);
  ArrayTopology<int32_t> arrays(graph.indptr, graph.indices);
  NeighborLists lists(graph.num_nodes(), 4);
  for (EngineOptions options : Engines()) {
    options.faults = disk::FaultOptions{};
    options.faults->fail_read_at = 5;
    disk::Engine engine(options);
    CachedTopology<int32_t> topology(graph.indptr, lists, engine, graph.file, 4096);
    threads::Pool pool(2);
    const Frontiers frontier(arrays, SomeNodes(500, 1999, 4), 10, 1);
    try {
      frontier.Fetch(topology, pool);
      FAIL("no error");
    } catch (const disk::IoError& error) {
      CHECK(error.code() == EIO);
      CHECK(error.path() == graph.file->path());
      CHECK(error.length() > 0);
      CHECK(error.offset() + error.length() <= graph.file->size() + 4096);
    }
    CHECK(frontier.Fetch(topology, pool) == frontier.Fetch(arrays, pool));
  }
}

TEST_CASE("cached topology: cancel ends a wait for a slow drive") {
  const Graph<int32_t> graph(Degrees(60000, 9), 4096);
  NeighborLists lists(graph.num_nodes(), 4);
  EngineOptions options = Options(EngineKind::kPool);
  options.workers = 1;
  options.faults = disk::FaultOptions{};
  options.faults->delay_us = 20000;  // some thousand reads: half a minute
  disk::Engine engine(options);
  CachedTopology<int32_t> topology(graph.indptr, lists, engine, graph.file, 4096);
  threads::Pool pool(2);
  const Frontiers frontier(topology, SomeNodes(5000, 59999, 4), 10, 0);
  std::thread canceller([&] {
    while (engine.counters().read_requests < 2) std::this_thread::yield();
    pool.Cancel();
  });
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(frontier.Fetch(topology, pool), threads::Cancelled);
  canceller.join();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("cached topology: many samplers, while the lists come and go") {
  const Graph<int32_t> graph(Degrees(3000, 5), 4096);
  ArrayTopology<int32_t> arrays(graph.indptr, graph.indices);
  const auto scores = SomeScores(graph.num_nodes(), 0.5, 3);
  Cached<int32_t> cached(graph, scores, RoomFor(graph, scores));
  disk::Engine engine(Options(EngineKind::kPool));
  CachedTopology<int32_t> topology(graph.indptr, cached.lists, engine, graph.file, 4096);
  std::atomic<int> running{4}, wrong{0};
  std::vector<std::thread> samplers;
  for (uint32_t t = 0; t < 4; ++t) {
    samplers.emplace_back([&, t] {
      threads::Pool pool(2);
      for (uint32_t round = 0; round < 20; ++round) {
        const Frontiers frontier(arrays, SomeNodes(300, 2999, t + 10 * round), 5, 1);
        wrong += frontier.Fetch(topology, pool) != frontier.Fetch(arrays, pool);
      }
      --running;
    });
  }
  while (running > 0) {
    cached.lists.Detach();
    std::this_thread::yield();
    cached.Attach();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (std::thread& sampler : samplers) sampler.join();
  CHECK(wrong == 0);
  CHECK(topology.capacity_bytes() > 0);
  CHECK(topology.capacity_bytes() <= 4 * CachedTopology<int32_t>::MostBytes(300, 1500));
}

TEST_CASE("cached topology: scratch memory stays below its bound as frontiers grow") {
  const Graph<int64_t> graph(Degrees(3000, 5), 4096);
  NeighborLists lists(graph.num_nodes(), 8);
  disk::Engine engine(Options(EngineKind::kPool));
  CachedTopology<int64_t> topology(graph.indptr, lists, engine, graph.file, 4096);
  threads::Pool pool(1);
  for (size_t count : {1, 10, 1000, 1400, 2000, 30000}) {
    const Frontiers frontier(topology, SomeNodes(count, 2999, 1), 10, 0);
    frontier.Fetch(topology, pool);
    CHECK(topology.capacity_bytes() <=
          CachedTopology<int64_t>::MostBytes(count, frontier.edges.size()));
  }
}

TEST_CASE("cached topology: lists of another graph are noticed, not read beyond") {
  const Graph<int32_t> small({1, 1, 1}, 64), large({1, 1, 900000}, 64);
  Cached<int32_t> cached(small, {1, 1, 1});
  disk::Engine engine(Options(EngineKind::kPool));
  CachedTopology<int32_t> topology(large.indptr, cached.lists, engine, large.file, 64);
  threads::Pool pool(1);
  CHECK_THROWS_AS(Frontiers(topology, {2}, -1, 0).Fetch(topology, pool), BadTopology);
}

// Choosing

std::vector<bool> ChosenBits(const std::vector<ListBlock>& blocks, size_t nodes) {
  std::vector<bool> bits(nodes);
  for (size_t v = 0; v < nodes; ++v) {
    bits[v] = blocks[v / ListBlock::kNodes].nodes.Has(v % ListBlock::kNodes);
  }
  return bits;
}

TEST_CASE("choose lists: takes what a walk in sorted order takes") {
  std::minstd_rand random(3);
  for (int round = 0; round < 300; ++round) {
    const size_t nodes = random() % 900;
    const auto degrees = Degrees(nodes, static_cast<uint32_t>(random()));
    std::vector<int64_t> indptr{0};
    for (int64_t degree : degrees) indptr.push_back(indptr.back() + degree);
    std::vector<float> scores(nodes);
    for (float& score : scores) {  // many equals, or nearly none; both ends of the range
      score =
          round % 2 == 0 ? static_cast<float>(random() % 4) : static_cast<float>(random()) * 1e-30F;
    }
    if (nodes > 2) scores[0] = std::numeric_limits<float>::infinity(), scores[1] = -0.0F;
    const uint64_t room = random() % (static_cast<uint64_t>(indptr.back()) * 4 + 100);
    std::vector<ListBlock> blocks(ListBlock::Count(static_cast<int64_t>(nodes)));
    const cache::Chosen chosen =
        round % 3 == 0 ? cache::ChooseLists(*Compressed(indptr), scores, 4, room, blocks)
                       : cache::ChooseLists(PlainOffsets(indptr), scores, 4, room, blocks);
    std::vector<size_t> order(nodes);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    std::vector<bool> expected(nodes);
    uint64_t left = room, lists = 0, entries = 0;
    for (size_t node : order) {
      const uint64_t cost = 4 + 4 * static_cast<uint64_t>(degrees[node]);
      if (degrees[node] == 0 || cost > left) continue;
      left -= cost;
      expected[node] = true;
      ++lists;
      entries += static_cast<uint64_t>(degrees[node]);
    }
    REQUIRE(ChosenBits(blocks, nodes) == expected);
    REQUIRE(chosen.lists == lists);
    REQUIRE(chosen.entries == entries);
  }
}

TEST_CASE("choose lists: scores that have no order are refused, too long lists passed over") {
  std::vector<ListBlock> blocks(1);
  const std::vector<int64_t> indptr{0, 1, 2};
  for (float bad : {-1.0F, std::nanf("")}) {
    const std::vector<float> scores{1, bad};
    CHECK_THROWS_AS(cache::ChooseLists(PlainOffsets(indptr), scores, 4, 100, blocks),
                    std::invalid_argument);
  }
  blocks.assign(1, {});
  const std::vector<int64_t> long_lists{0, cache::kLongestList, 2 * cache::kLongestList + 1};
  const std::vector<float> scores{1, 2};
  const auto chosen =
      cache::ChooseLists(PlainOffsets(long_lists), scores, 4, uint64_t{1} << 40, blocks);
  CHECK(chosen.lists == 1);
  CHECK(ChosenBits(blocks, 2) == std::vector<bool>{true, false});
}

TEST_CASE("neighbour lists: memory that cannot be theirs is refused") {
  const Graph<int32_t> graph(Degrees(1000, 2), 64);
  Cached<int32_t> cached(graph, std::vector<float>(1000, 1.0F));
  NeighborLists& lists = cached.lists;
  const std::span<const std::byte> memory(cached.memory.data(), cached.memory.size());
  const auto [count, entries] = cached.chosen;
  const auto bad = [&](std::span<const std::byte> of, uint64_t n, uint64_t e) {
    CHECK_THROWS_AS(lists.Attach(of, n, e), std::invalid_argument);
  };
  bad(memory.first(memory.size() - 1), count, entries);
  bad(memory, count + 2, entries - 2);
  bad(memory, 1001, entries);
  bad(memory, count, ~uint64_t{0} / 2);
  bad({}, 0, 1);
  auto* blocks = reinterpret_cast<ListBlock*>(cached.memory.data());
  ++blocks[1].lists_before;
  bad(memory, count, entries);
  --blocks[1].lists_before;
  blocks[2].entries_before = entries + 1;
  bad(memory, count, entries);
}

}  // namespace
}  // namespace outcrop::sample
