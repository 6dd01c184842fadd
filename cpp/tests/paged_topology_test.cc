// Topologies through the page cache: what one in memory gives, and errors where a map would end the
// process.
#include "sample/paged_topology.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "disk/error.h"
#include "sample/frontier.h"
#include "sample/neighbor.h"
#include "tests/scratch.h"

namespace outcrop::sample {
namespace {

constexpr uint64_t kBase = 128;

template <typename T>
std::vector<std::byte> AfterBase(const std::vector<T>& values) {
  std::vector<std::byte> bytes(kBase + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data() + kBase, values.data(), bytes.size() - kBase);
  return bytes;
}

// A graph in memory and in files.
template <typename Index>
struct Graph {
  explicit Graph(int64_t nodes, uint64_t most_degree = 40) {
    std::minstd_rand random(7);
    for (int64_t v = 0; v < nodes; ++v) {
      const uint64_t degree = v == 1 ? 20'000 : random() % (most_degree + 1);
      indptr.push_back(indptr.back() + static_cast<int64_t>(degree));
    }
    indices.resize(static_cast<size_t>(indptr.back()));
    for (Index& id : indices) id = static_cast<Index>(random() % static_cast<uint64_t>(nodes));
    tests::WriteFile(dir.File("indptr"), AfterBase(indptr));
    tests::WriteFile(dir.File("indices"), AfterBase(indices));
  }

  std::shared_ptr<disk::File> Open(const char* name) const {
    return disk::File::OpenForRead(dir.File(name), disk::Access::kBuffered);
  }
  PagedTopology<Index> Paged() const {
    return {{Open("indptr"), kBase},
            {Open("indices"), kBase},
            static_cast<int64_t>(indptr.size()) - 1,
            static_cast<int64_t>(indices.size())};
  }

  tests::ScratchDir dir;
  std::vector<int64_t> indptr{0};
  std::vector<Index> indices;
};

template <typename Index>
void CheckAlike(const Graph<Index>& graph, Topology& paged, int64_t fanout) {
  ArrayTopology<Index> array(graph.indptr, graph.indices);
  for (const Replace replace : {Replace::kNo, Replace::kYes}) {
    NeighborSampler expected(array, {fanout, 3}, replace, 1);
    NeighborSampler found(paged, {fanout, 3}, replace, 4);
    for (uint32_t batch = 0; batch < 3; ++batch) {
      std::vector<int64_t> seeds;
      for (int64_t v = 0; v < 300; ++v) seeds.push_back(v * 7 % paged.num_nodes());
      const Subgraph& want = expected.Sample({1, 0, 0, batch}, seeds);
      const Subgraph& got = found.Sample({1, 0, 0, batch}, seeds);
      REQUIRE(std::ranges::equal(std::span<const int64_t>(want.nodes),
                                 std::span<const int64_t>(got.nodes)));
      REQUIRE(std::ranges::equal(std::span<const int64_t>(want.edge_ids),
                                 std::span<const int64_t>(got.edge_ids)));
    }
  }
}

TEST_CASE_TEMPLATE("a paged topology gives what one in memory gives", Index, int32_t, int64_t) {
  const Graph<Index> graph(3000);
  PagedTopology<Index> paged = graph.Paged();
  for (const int64_t fanout : {1, 10, 200, -1}) CheckAlike(graph, paged, fanout);
}

TEST_CASE("where the kernel has no files in memory, ranges are read one by one") {
  const Graph<int32_t> graph(3000);
  PagedTopology<int32_t> paged = graph.Paged();  // has no page yet but that of its constructor
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int next = dup(0);
  close(next);
  const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  CheckAlike(graph, paged, 10);
  setrlimit(RLIMIT_NOFILE, &before);
}

// What sampling all nodes throws.
template <typename Index>
disk::IoError ErrorOf(Topology& topology) {
  NeighborSampler sampler(topology, {5}, Replace::kNo, 4);
  std::vector<int64_t> seeds(static_cast<size_t>(topology.num_nodes()));
  for (size_t v = 0; v < seeds.size(); ++v) seeds[v] = static_cast<int64_t>(v);
  try {
    sampler.Sample({1, 0, 0, 0}, seeds);
  } catch (const disk::IoError& error) {
    return error;
  }
  throw std::runtime_error("nothing was thrown");
}

TEST_CASE("a file that is truncated under a paged topology is an error, wherever it ends") {
  for (const char* name : {"indptr", "indices"}) {
    for (const off_t end : {0, 100, 4096, 9000}) {
      CAPTURE(name);
      CAPTURE(end);
      const Graph<int32_t> graph(3000);
      PagedTopology<int32_t> paged = graph.Paged();
      REQUIRE(truncate(graph.dir.File(name).c_str(), end) == 0);
      const disk::IoError error = ErrorOf<int32_t>(paged);
      CHECK(error.code() == ENODATA);
      CHECK(error.path() == graph.dir.File(name));
    }
  }
}

TEST_CASE("bytes cut off within the last page, which a map reads as zeros, are an error") {
  const Graph<int32_t> graph(3000);
  const auto size = static_cast<off_t>(kBase + graph.indices.size() * sizeof(int32_t));
  PagedTopology<int32_t> paged = graph.Paged();
  REQUIRE(truncate(graph.dir.File("indices").c_str(), size - 4) == 0);
  CHECK(ErrorOf<int32_t>(paged).path() == graph.dir.File("indices"));
}

TEST_CASE("a drive that fails is an error with its number") {
  const Graph<int32_t> graph(3000);
  const auto file = graph.Open("indices");
  PagedTopology<int32_t> paged({graph.Open("indptr"), kBase}, {file, kBase}, 3000,
                               static_cast<int64_t>(graph.indices.size()));
  REQUIRE(truncate(graph.dir.File("indices").c_str(), 0) == 0);
  // Pages are gone, and of what stands in for the file no byte at these offsets can be read.
  const int failing = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  REQUIRE(dup2(failing, file->buffered_fd()) >= 0);
  close(failing);
  CHECK(ErrorOf<int32_t>(paged).code() == EIO);
}

TEST_CASE("however many threads copy at once, few descriptors stay open") {
  const auto open_files = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  const Graph<int32_t> graph(3000);
  const int before = open_files();
  {
    PagedTopology<int32_t> paged = graph.Paged();
    NeighborSampler sampler(paged, {10, 10}, Replace::kNo, 64);
    for (uint32_t batch = 0; batch < 20; ++batch) {
      sampler.Sample({1, 0, 0, batch}, std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    }
    const int kept = 2 * (1 + static_cast<int>(disk::GuardedMap::kKeptPages));
    CHECK(open_files() <= before + kept);
  }
  CHECK(open_files() == before);
}

TEST_CASE("an indptr of another number of edges is refused") {
  const Graph<int32_t> graph(100);
  const auto edges = static_cast<int64_t>(graph.indices.size());
  CHECK_THROWS_AS(PagedTopology<int32_t>({graph.Open("indptr"), kBase},
                                         {graph.Open("indices"), kBase}, 100, edges + 1),
                  BadTopology);
}

TEST_CASE("samplers and topologies are refused in a forked child, and dropped without waiting") {
  const Graph<int32_t> graph(3000);
  PagedTopology<int32_t> paged = graph.Paged();
  auto sampler = std::make_unique<NeighborSampler>(paged, std::vector<int64_t>{5}, Replace::kNo, 4);
  const std::vector<int64_t> seeds{1, 2, 3};
  sampler->Sample({1, 0, 0, 0}, seeds);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int refused = 0;
    try {
      sampler->Sample({1, 0, 0, 0}, seeds);
    } catch (const threads::Forked&) {
      ++refused;
    }
    sampler.reset();
    NeighborSampler fresh(paged, {5}, Replace::kNo, 1);
    try {
      fresh.Sample({1, 0, 0, 0}, seeds);
    } catch (const threads::Forked&) {
      ++refused;
    }
    _exit(refused == 2 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

}  // namespace
}  // namespace outcrop::sample
