// Blocks: a graph in them is swept in order, streams keep what they are given, and hyperbatches are
// the batches of the neighbour sampler.
#include "sample/hyperbatch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "disk/error.h"
#include "disk/uring.h"
#include "sample/neighbor.h"
#include "sample/topology.h"
#include "tests/scratch.h"

namespace outcrop::sample {
namespace {

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

// A graph in memory, and in blocks in a file.
template <typename Index>
struct Graph {
  Graph(const std::vector<int64_t>& degrees, uint64_t bytes) : block_bytes(bytes) {
    std::minstd_rand random(3);
    for (int64_t degree : degrees) indptr.push_back(indptr.back() + degree);
    indices.resize(static_cast<size_t>(indptr.back()));
    for (Index& id : indices) id = static_cast<Index>(random() % degrees.size());
    layout::BlockWriter<Index> writer(bytes, static_cast<int64_t>(degrees.size()));
    const size_t most = 2 * (indices.size() * sizeof(Index) + 4 * degrees.size()) / bytes + 4;
    std::vector<std::byte> out(most * bytes);
    last_nodes.resize(most);
    const auto taken = writer.Add(indptr, indices, out, last_nodes);
    CHECK(taken.nodes == degrees.size());
    CHECK(taken.entries == indices.size());
    const bool more = writer.Finish(std::span(out).subspan(taken.blocks * bytes, bytes),
                                    &last_nodes[taken.blocks]);
    last_nodes.resize(taken.blocks + more);
    out.resize(last_nodes.size() * bytes);
    tests::WriteFile(dir.File("blocks"), out);
    file = disk::File::OpenForRead(dir.File("blocks"), disk::Access::kAuto);
  }

  int64_t num_nodes() const { return static_cast<int64_t>(indptr.size()) - 1; }

  GraphBlocks::Source Source(disk::Engine& engine) const {
    return {last_nodes, num_nodes(), indptr.back(), block_bytes, sizeof(Index), &engine, file, 0};
  }

  tests::ScratchDir dir;
  uint64_t block_bytes;
  std::vector<int64_t> indptr{0}, last_nodes;
  std::vector<Index> indices;
  std::shared_ptr<disk::File> file;
};

// Mostly short lists, some none, some of many blocks.
std::vector<int64_t> Degrees(size_t nodes) {
  std::minstd_rand random(5);
  std::vector<int64_t> degrees(nodes);
  for (int64_t& degree : degrees) {
    degree = static_cast<int64_t>(random() % 100 == 0 ? random() % 20000 : random() % 12);
  }
  return degrees;
}

std::vector<int64_t> Seeds(size_t count, int64_t nodes, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<int64_t> some(count);
  for (int64_t& node : some) node = static_cast<int64_t>(random() % static_cast<uint64_t>(nodes));
  if (count > 1) some.back() = some.front();
  return some;
}

template <typename T>
std::vector<T> Copy(const memory::Buffer<T>& buffer) {
  return {buffer.data(), buffer.data() + buffer.size()};
}

void CheckEqual(const Subgraph& found, const Subgraph& expected) {
  CHECK(Copy(found.nodes) == Copy(expected.nodes));
  CHECK(Copy(found.sources) == Copy(expected.sources));
  CHECK(Copy(found.counts) == Copy(expected.counts));
  CHECK(Copy(found.edge_ids) == Copy(expected.edge_ids));
  CHECK(found.nodes_per_hop == expected.nodes_per_hop);
  CHECK(found.edges_per_hop == expected.edges_per_hop);
}

template <typename Index>
void CheckEqualsNeighborSampler(uint64_t block_bytes, uint64_t slots) {
  const Graph<Index> graph(Degrees(2000), block_bytes);
  ArrayTopology<Index> arrays(graph.indptr, graph.indices);
  for (const EngineOptions& options : Engines()) {
    disk::Engine engine(options);
    GraphBlocks blocks(graph.Source(engine), slots);
    for (const Replace replace : {Replace::kNo, Replace::kYes}) {
      const std::vector<int64_t> fanouts{5, -1, 3};
      NeighborSampler alone(arrays, fanouts, replace, 1);
      HyperbatchSampler together(
          blocks,
          {fanouts, replace, true, 2, HyperbatchSampler::LeastBytes(9), graph.dir.File("picks")});
      for (const size_t batches : {9, 1, 2}) {
        together.Begin(batches);
        for (uint32_t b = 0; b < batches; ++b)
          together.Add({1, 0, 2, b}, Seeds(20 * b, 2000, b + 1));
        together.Sample();
        for (uint32_t b = 0; b < batches; ++b) {
          CheckEqual(together.Load(b), alone.Sample({1, 0, 2, b}, Seeds(20 * b, 2000, b + 1)));
        }
      }
      CHECK(together.spilled_bytes() > 0);
    }
  }
}

TEST_CASE("hyperbatch: equals batches sampled alone") {
  CheckEqualsNeighborSampler<int32_t>(4096, 2);
  CheckEqualsNeighborSampler<int64_t>(4096, 7);
  CheckEqualsNeighborSampler<int32_t>(65536, 3);
  CheckEqualsNeighborSampler<int64_t>(4 << 20, 2);
}

TEST_CASE("block sweep: wanted blocks in order, each once, whatever the buffer has") {
  const Graph<int32_t> graph(std::vector<int64_t>(5000, 20), 4096);
  const uint64_t count = graph.last_nodes.size();
  for (const EngineOptions& options : Engines()) {
    disk::Engine engine(options);
    threads::Pool pool(1);
    for (const uint64_t slots : {2U, 3U, 10U, 200U}) {
      GraphBlocks blocks(graph.Source(engine), slots);
      BlockSet wanted(count);
      std::minstd_rand random(static_cast<uint32_t>(slots));
      uint64_t given = 0;
      for (int round = 0; round < 20; ++round) {
        std::vector<uint64_t> expected;
        for (uint64_t block = 0; block < count; ++block) {
          if (random() % 3 != 0) continue;
          wanted.Add(block);
          expected.push_back(block);
        }
        BlockSweep sweep(blocks, wanted, pool);
        uint64_t number = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          const std::byte* block = sweep.Next(&number);
          REQUIRE(block != nullptr);
          REQUIRE(number == expected[i]);
          CHECK(layout::BlockView<int32_t>(block).last_node() == graph.last_nodes[number]);
          // Sometimes one more, which may be in the buffer, or read for nobody so far.
          const uint64_t later = number + 1 + random() % 5;
          if (random() % 4 == 0 && later < count && !wanted.Has(later)) {
            sweep.Want(later);
            expected.insert(std::lower_bound(expected.begin(), expected.end(), later), later);
          }
          ++given;
        }
        CHECK(sweep.Next(&number) == nullptr);
      }
      CHECK(blocks.counts().found + blocks.counts().read == given);
      if (slots >= count) CHECK(blocks.counts().read <= count);
    }
  }
}

TEST_CASE("block sweep: what is given up leaves a buffer that can be used") {
  const Graph<int32_t> graph(std::vector<int64_t>(5000, 20), 4096);
  EngineOptions options = Options(EngineKind::kPool);
  options.faults = disk::FaultOptions{};
  options.faults->fail_read_at = 4;
  disk::Engine engine(options);
  threads::Pool pool(1);
  GraphBlocks blocks(graph.Source(engine), 4);
  BlockSet wanted(graph.last_nodes.size());
  const auto sweep_all = [&] {
    for (uint64_t block = 0; block < graph.last_nodes.size(); block += 2) wanted.Add(block);
    BlockSweep sweep(blocks, wanted, pool);
    uint64_t number = 0, given = 0;
    while (sweep.Next(&number) != nullptr) ++given;
    return given;
  };
  CHECK_THROWS_AS(sweep_all(), disk::IoError);
  CHECK(wanted.count() == 0);
  CHECK(sweep_all() == (graph.last_nodes.size() + 1) / 2);
  pool.Cancel();
  CHECK_THROWS_AS(sweep_all(), threads::Cancelled);
}

TEST_CASE("streams: what is appended comes back, in memory or not") {
  tests::ScratchDir dir;
  disk::Engine engine(Options(EngineKind::kPool));
  threads::Pool pool(1);
  for (const uint64_t memory : {Streams::LeastBytes(5), uint64_t{8} << 20}) {
    Streams streams(engine, pool, dir.File("streams"), memory);
    for (int round = 0; round < 3; ++round) {
      streams.Reset(5);
      std::vector<std::vector<std::byte>> expected(5);
      std::minstd_rand random(7);
      for (int i = 0; i < 2000; ++i) {
        const size_t stream = random() % 5;
        const auto bytes = tests::RandomBytes(random() % 300, static_cast<uint32_t>(i));
        streams.Append(stream, bytes.data(), bytes.size());
        expected[stream].insert(expected[stream].end(), bytes.begin(), bytes.end());
      }
      for (size_t stream = 0; stream < 5; ++stream) {
        std::vector<std::byte> found, chunk(streams.chunk_bytes());
        if (stream % 2 == 0) {
          memory::Buffer<std::byte> all;
          streams.TakeAll(stream, all);
          found = Copy(all);
        }
        while (const size_t count = streams.TakeChunk(stream, chunk)) {
          found.insert(found.end(), chunk.begin(), chunk.begin() + static_cast<ptrdiff_t>(count));
        }
        CHECK(found == expected[stream]);
      }
    }
    CHECK((streams.spilled_bytes() > 0) == (memory < 1 << 20));
  }
  CHECK_THROWS_AS(Streams(engine, pool, dir.File("few"), 4096).Reset(5), std::invalid_argument);
}

TEST_CASE("blocks: a graph without edges, and one of a single node") {
  disk::Engine engine(Options(EngineKind::kPool));
  for (const std::vector<int64_t>& degrees : {std::vector<int64_t>(3000, 0), {5000}}) {
    const Graph<int32_t> graph(degrees, 4096);
    ArrayTopology<int32_t> arrays(graph.indptr, graph.indices);
    GraphBlocks blocks(graph.Source(engine), 2);
    NeighborSampler alone(arrays, {7, 7}, Replace::kNo, 1);
    HyperbatchSampler together(blocks,
                               {{7, 7}, Replace::kNo, true, 1, 1 << 20, graph.dir.File("picks")});
    together.Begin(1);
    together.Add({}, std::vector<int64_t>{0, graph.num_nodes() - 1});
    together.Sample();
    CheckEqual(together.Load(0), alone.Sample({}, std::vector<int64_t>{0, graph.num_nodes() - 1}));
  }
}

TEST_CASE("blocks: sizes that contradict each other are refused") {
  disk::Engine engine(Options(EngineKind::kPool));
  const Graph<int32_t> graph(std::vector<int64_t>(3000, 10), 4096);
  auto source = graph.Source(engine);
  CHECK_NOTHROW(GraphBlocks(source, 2));
  source.num_nodes = 2999;
  CHECK_THROWS_AS(GraphBlocks(source, 2), std::invalid_argument);
  source = graph.Source(engine);
  source.base = 4096;
  CHECK_THROWS_AS(GraphBlocks(source, 2), std::invalid_argument);
  source = graph.Source(engine);
  auto descending = graph.last_nodes;
  std::swap(descending[0], descending[1]);
  source.last_nodes = descending;
  CHECK_THROWS_AS(GraphBlocks(source, 2), std::invalid_argument);
}

}  // namespace
}  // namespace outcrop::sample
