// What samplers are made of: threads, buffers, slabs, tables, draws, rows; and the samplers on many
// threads, for the sanitizers. What they sample is compared with a model in tests/sample.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "memory/buffer.h"
#include "memory/slabs.h"
#include "rows/copier.h"
#include "sample/draw.h"
#include "sample/id_table.h"
#include "sample/neighbor.h"
#include "sample/relabel.h"
#include "sample/shadow.h"
#include "sample/topology.h"
#include "threads/pool.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;  // the sanitizer maps memory of its own
#else
constexpr bool kSanitized = false;
#endif

namespace outcrop {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kPage = 4096;

// Pool

TEST_CASE("pool: every item once, in chunks of the grain, on any number of threads") {
  for (uint32_t threads : {0U, 1U, 2U, 7U}) {
    threads::Pool pool(threads);
    CHECK(pool.threads() == std::max(threads, 1U));
    for (size_t count : {0, 1, 7, 8, 9, 1000}) {
      for (size_t grain : {0, 1, 8, 5000}) {
        std::vector<std::atomic<int>> seen(count);
        std::atomic<size_t> largest{0};
        pool.For(count, grain, [&](size_t begin, size_t end) {
          if (end - begin > largest) largest = end - begin;
          for (size_t i = begin; i < end; ++i) ++seen[i];
        });
        CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& n) { return n == 1; }));
        CHECK(largest <= std::max<size_t>(grain, 1));
      }
    }
  }
}

TEST_CASE("pool: many loops, large and small, one after the other") {
  threads::Pool pool(4);
  uint64_t expected = 0;
  std::atomic<uint64_t> sum{0};
  for (size_t loop = 0; loop < 5000; ++loop) {
    const size_t count = loop % 3 == 0 ? 1 : loop % 50;
    pool.For(count, 4, [&](size_t begin, size_t end) { sum += end - begin; });
    expected += count;
    REQUIRE(sum == expected);  // For returned, so all of it is done
  }
}

TEST_CASE("pool: what a body throws is rethrown, and the pool goes on") {
  for (uint32_t threads : {1U, 4U}) {
    threads::Pool pool(threads);
    for (int round = 0; round < 100; ++round) {
      std::atomic<size_t> done{0};
      const auto body = [&](size_t begin, size_t) {
        if (begin == 40) throw std::out_of_range("item 40");
        ++done;
      };
      CHECK_THROWS_WITH_AS(pool.For(100, 1, body), "item 40", std::out_of_range);
      CHECK(done < 100);
      pool.For(100, 1, [&](size_t, size_t) { ++done; });
      CHECK(done >= 100);
    }
    const auto all_throw = [](size_t, size_t) { throw std::runtime_error("each"); };
    CHECK_THROWS_WITH(pool.For(100, 1, all_throw), "each");
  }
}

TEST_CASE("pool: cancel gives up the loop that runs and every later one") {
  for (uint32_t threads : {1U, 4U}) {
    threads::Pool pool(threads);
    std::atomic<bool> begun{false};
    std::thread canceller([&] {
      while (!begun) std::this_thread::yield();
      pool.Cancel();
    });
    std::atomic<size_t> chunks{0};
    const auto body = [&](size_t, size_t) {
      begun = true;
      ++chunks;
      std::this_thread::sleep_for(milliseconds(1));
    };
    CHECK_THROWS_AS(pool.For(100000, 1, body), threads::Cancelled);
    canceller.join();
    CHECK(chunks < 100000);
    const size_t before = chunks;
    CHECK_THROWS_AS(pool.For(10, 1, body), threads::Cancelled);
    CHECK_THROWS_AS(pool.For(0, 1, body), threads::Cancelled);
    CHECK(chunks == before);
  }
}

TEST_CASE("pool: is made and destroyed without a loop") {
  for (int round = 0; round < 50; ++round) threads::Pool pool(8);
}

// Buffer

TEST_CASE("buffer: grows and keeps what it has") {
  memory::Buffer<uint64_t> buffer;
  CHECK(buffer.size() == 0);
  CHECK(buffer.capacity_bytes() == 0);
  std::vector<uint64_t> expected;
  std::minstd_rand random(1);
  for (int step = 0; step < 300; ++step) {
    const size_t size = expected.size() + random() % 5000;
    const size_t before = expected.size();
    buffer.resize(size);
    for (size_t i = before; i < size; ++i) expected.push_back(buffer[i] = random());
    buffer.push_back(step);
    expected.push_back(step);
    REQUIRE(buffer.size() == expected.size());
    REQUIRE(buffer.capacity_bytes() >= buffer.size() * sizeof(uint64_t));
  }
  CHECK(std::equal(expected.begin(), expected.end(), buffer.data()));
  const auto slice = buffer.Slice(10, 20);
  CHECK(std::equal(slice.begin(), slice.end(), expected.begin() + 10));
  const uint64_t* data = buffer.data();
  const uint64_t capacity = buffer.capacity_bytes();
  buffer.clear();
  buffer.resize(expected.size());
  CHECK(buffer.data() == data);  // no growth, no change
  CHECK(buffer[7] == expected[7]);
  CHECK(buffer.capacity_bytes() == capacity);
}

TEST_CASE("buffer: values that do not divide a page") {
  struct Odd {
    char bytes[7];
  };
  memory::Buffer<Odd> buffer;
  for (int i = 0; i < 100000; ++i)
    buffer.push_back({{static_cast<char>(i % 100), 0, 0, 0, 0, 0, 1}});
  bool right = true;
  for (size_t i = 0; i < buffer.size(); ++i)
    right &= buffer[i].bytes[0] == static_cast<char>(i % 100);
  CHECK(right);
}

TEST_CASE("buffer: moves, and gives its memory back") {
  memory::Buffer<int> one;
  one.resize(100);
  one[99] = 5;
  memory::Buffer<int> two = std::move(one);
  CHECK(two[99] == 5);
  one = std::move(two);
  CHECK(one[99] == 5);
  one = memory::Buffer<int>();
  CHECK(one.capacity_bytes() == 0);
  CHECK(one.size() == 0);
  CHECK_THROWS_AS(memory::Buffer<char>().resize(size_t{1} << 60), std::bad_alloc);
}

// IdTable

// Ids -> their places in a list, as a sampler keeps them.
struct Places {
  uint32_t Add(uint64_t id) {
    const auto next = static_cast<uint32_t>(ids.size());
    const uint32_t place = table.FindOrInsert(
        sample::IdTable::Hash(id), static_cast<uint32_t>(id), next,
        [&](uint32_t i) { return ids[i] == id; },
        [&](uint32_t i) { return sample::IdTable::Hash(i == next ? id : ids[i]); });
    if (place == next) ids.push_back(id);
    return place;
  }

  uint32_t Find(uint64_t id) const {
    return table.Find(sample::IdTable::Hash(id), static_cast<uint32_t>(id),
                      [&](uint32_t i) { return ids[i] == id; });
  }

  void Check(const std::vector<uint64_t>& wanted) {
    ids.clear();
    table.Reset(0);
    std::unordered_map<uint64_t, uint32_t> expected;
    bool right = true;
    for (uint64_t id : wanted) {
      right &=
          Add(id) == expected.emplace(id, static_cast<uint32_t>(expected.size())).first->second;
    }
    for (uint64_t id : wanted) right &= Find(id) == expected[id];
    CHECK(right);
    CHECK(ids.size() == expected.size());
  }

  std::vector<uint64_t> ids;
  sample::IdTable table;
};

uint64_t InverseOfHash(uint64_t hash) {
  uint64_t inverse = 1;  // of the odd factor, by Newton's method
  for (int i = 0; i < 6; ++i) inverse *= 2 - sample::IdTable::Hash(1) * inverse;
  return hash * inverse;
}

TEST_CASE("id table: ids that repeat, over several growths") {
  Places places;
  std::minstd_rand random(5);
  std::vector<uint64_t> ids(200000);
  for (uint64_t& id : ids) id = random() % 60000;
  places.Check(ids);
  places.Check({3, 3, 1});  // and forgets
  CHECK(places.Find(59999) == sample::IdTable::kNone);
  places.Check(ids);
}

TEST_CASE("id table: ids of one slot, and ids that wrap around the end") {
  Places places;
  std::vector<uint64_t> low, high;
  for (uint64_t i = 0; i < 3000; ++i) {
    low.push_back(InverseOfHash(i));
    high.push_back(InverseOfHash(~i));
    REQUIRE(sample::IdTable::Hash(low.back()) == i);
  }
  places.Check(low);
  places.Check(high);
  low.insert(low.end(), high.begin(), high.end());
  places.Check(low);
}

TEST_CASE("id table: ids whose tags agree are told apart") {
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 3000; ++i) ids.push_back(i << 32 | 7);
  Places().Check(ids);
}

TEST_CASE("id table: shrinks after a large batch, within its old memory") {
  Places places;
  std::vector<uint64_t> many(100000);
  std::iota(many.begin(), many.end(), 0);
  places.Check(many);
  const uint64_t bytes = places.table.capacity_bytes();
  places.Check({1, 2, 3});
  CHECK(places.table.capacity_bytes() <= bytes);
  places.Check(many);
  CHECK(places.table.capacity_bytes() <= 2 * bytes);
}

// SlabPool

using memory::Slab;
using memory::SlabPool;

std::vector<Slab> Take(SlabPool& pool, std::vector<uint64_t> sizes,
                       milliseconds wait = milliseconds(0)) {
  return pool.Take(sizes, wait);
}

TEST_CASE("slabs: a size is charged at least itself, and at most an eighth or a page more") {
  uint64_t last = 0;
  for (uint64_t bytes = 0; bytes < 3 << 20; bytes += 509) {
    const uint64_t charged = SlabPool::ChargedBytes(bytes);
    REQUIRE(charged >= std::max(bytes, last));
    REQUIRE(charged % kPage == 0);
    REQUIRE(charged < bytes + std::max(bytes / 8, kPage) + 1);
    REQUIRE(SlabPool::ChargedBytes(charged) == charged);
    last = charged;
  }
}

TEST_CASE("slabs: all at once, or none at all") {
  auto pool = std::make_shared<SlabPool>(10 * kPage);
  CHECK(Take(*pool, {11 * kPage}).empty());
  CHECK(Take(*pool, {6 * kPage, 6 * kPage}).empty());
  CHECK(pool->held_bytes() == 0);
  {
    auto slabs = Take(*pool, {6 * kPage, 1, 3 * kPage});
    REQUIRE(slabs.size() == 3);
    CHECK(pool->held_bytes() == 10 * kPage);
    for (const Slab& slab : slabs) {
      CHECK(reinterpret_cast<uintptr_t>(slab.data()) % kPage == 0);
      std::memset(slab.data(), 1, kPage);
    }
    CHECK(Take(*pool, {1}).empty());
    slabs.pop_back();
    CHECK(pool->held_bytes() == 7 * kPage);
    CHECK(Take(*pool, {1, 2 * kPage}).size() == 2);
  }
  CHECK(pool->held_bytes() == 0);
  CHECK(pool->peak_bytes() == 10 * kPage);
  CHECK(Take(*pool, {10 * kPage}).size() == 1);
}

TEST_CASE("slabs: memory is used again, and makes room where sizes change") {
  auto pool = std::make_shared<SlabPool>(8 * kPage);
  for (Slab& slab : Take(*pool, {kPage, 4 * kPage})) slab.data()[0] = std::byte{7};
  for (int round = 0; round < 10; ++round) {  // fresh memory would be zero
    CHECK(Take(*pool, {4 * kPage})[0].data()[0] == std::byte{7});
  }
  CHECK(Take(*pool, {kPage})[0].data()[0] == std::byte{7});
  CHECK(Take(*pool, {8 * kPage}).size() == 1);  // what was kept had to go
  CHECK(Take(*pool, std::vector<uint64_t>(8, 1)).size() == 8);
}

TEST_CASE("slabs: taking waits until memory is returned") {
  auto pool = std::make_shared<SlabPool>(4 * kPage);
  auto held = Take(*pool, {3 * kPage});
  CHECK(Take(*pool, {2 * kPage}, milliseconds(20)).empty());
  std::thread returner([&] {
    std::this_thread::sleep_for(milliseconds(30));
    held.clear();
  });
  CHECK(Take(*pool, {2 * kPage}, milliseconds(60000)).size() == 1);
  returner.join();
}

TEST_CASE("slabs: a slab outlives the handle of its pool") {
  auto pool = std::make_shared<SlabPool>(4 * kPage);
  auto slabs = Take(*pool, {kPage, kPage});
  std::weak_ptr<SlabPool> alive = pool;
  pool.reset();
  CHECK(!alive.expired());
  std::memset(slabs[1].data(), 3, kPage);
  Slab moved = std::move(slabs[0]);
  slabs.clear();
  CHECK(alive.lock()->held_bytes() == kPage);
  {
    Slab last = std::move(moved);
  }
  CHECK(alive.expired());
}

TEST_CASE("slabs: many threads never hold more than the limit") {
  constexpr uint64_t kLimit = 64 * kPage;
  auto pool = std::make_shared<SlabPool>(kLimit);
  std::atomic<uint64_t> held{0}, most{0};
  std::atomic<int> refused{0}, overlaps{0};
  const auto work = [&](unsigned seed) {
    std::minstd_rand random(seed);
    for (int round = 0; round < 1500; ++round) {
      std::vector<uint64_t> sizes(1 + random() % 4);
      uint64_t charged = 0;
      for (uint64_t& size : sizes)
        charged += SlabPool::ChargedBytes(size = random() % (20 * kPage));
      auto slabs = Take(*pool, sizes, milliseconds(random() % 2));
      if (slabs.empty()) {
        ++refused;
        continue;
      }
      const uint64_t now = held += charged;
      for (uint64_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      // Memory that two held at once would show the other's mark.
      for (Slab& slab : slabs) std::memset(slab.data(), static_cast<int>(seed), 64);
      std::this_thread::yield();
      for (Slab& slab : slabs) overlaps += slab.data()[63] != static_cast<std::byte>(seed);
      held -= charged;
      slabs.clear();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i <= 6; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  CHECK(overlaps == 0);
  CHECK(refused > 0);
  CHECK(most <= kLimit);
  CHECK(pool->peak_bytes() <= kLimit);
  CHECK(pool->held_bytes() == 0);
}

int64_t MappedBytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST_CASE("slabs: what is held and what is kept for reuse never exceed the limit together" *
          doctest::skip(kSanitized)) {
  constexpr int64_t kLimit = 64 << 20;
  auto pool = std::make_shared<SlabPool>(kLimit);
  std::minstd_rand random(9);
  const int64_t before = MappedBytes();
  std::vector<Slab> held;
  for (int round = 0; round < 3000; ++round) {
    if (random() % 3 == 0) held.clear();
    for (Slab& slab : Take(*pool, {random() % (20 << 20), random() % (20 << 20)})) {
      held.push_back(std::move(slab));
    }
    REQUIRE(MappedBytes() - before <= kLimit + (1 << 20));
  }
  held.clear();
  pool.reset();
  CHECK(MappedBytes() - before < 1 << 20);
}

TEST_CASE("slabs: memory that the system refuses is not charged") {
  auto pool = std::make_shared<SlabPool>(uint64_t{1} << 60);
  CHECK_THROWS_AS(Take(*pool, {kPage, uint64_t{1} << 50}), std::bad_alloc);
  CHECK(pool->held_bytes() == 0);
}

// Copier

using rows::Encoding;

// An array of one encoding, and what its rows decode to.
struct Rows {
  Rows(Encoding encoding, size_t count, size_t dim) : values(count * dim) {
    std::minstd_rand random(static_cast<uint32_t>(dim));
    const auto put = [&](const auto& stored) {
      const auto* begin = reinterpret_cast<const std::byte*>(&stored);
      bytes.insert(bytes.end(), begin, begin + sizeof stored);
    };
    for (size_t row = 0; row < count; ++row) {
      const auto scale = static_cast<float>(row + 1) / 8;
      if (encoding == Encoding::kInt8) put(scale);
      for (size_t d = 0; d < dim; ++d) {
        const auto number = static_cast<int>(random() % 255) - 127;
        float& value = values[row * dim + d];
        switch (encoding) {
          case Encoding::kFloat32:
            put(value = static_cast<float>(number) / 3);
            break;
          case Encoding::kFloat16:
            put(Half(number, value));
            break;
          case Encoding::kBfloat16:
            value = static_cast<float>(number);  // 8 bits: exact in bfloat16
            put(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
            break;
          case Encoding::kInt8:
            value = scale * static_cast<float>(number);
            put(static_cast<int8_t>(number));
            break;
        }
      }
    }
    format = {bytes.size() / count, dim, encoding};
  }

  // One of some known numbers, as half precision has them.
  static uint16_t Half(int number, float& value) {
    static constexpr struct {
      uint16_t stored;
      float value;
    } kKnown[] = {
        {0x0000, 0.0F},
        {0x3C00, 1.0F},
        {0xC000, -2.0F},
        {0x7BFF, 65504.0F},
        {0x0400, 0x1p-14F},
        {0x0001, 0x1p-24F},
        {0x83FF, -0x3FFp-24F},
        {0x3555, 0x1.554p-2F},
        {0x7C00, std::numeric_limits<float>::infinity()},
    };
    const auto& known = kKnown[static_cast<size_t>(number + 127) % std::size(kKnown)];
    value = known.value;
    return known.stored;
  }

  std::vector<std::byte> bytes;
  std::vector<float> values;
  rows::RowFormat format;
};

TEST_CASE("gather: rows of every encoding and many dimensions, in any order, again and again") {
  std::minstd_rand random(3);
  for (uint32_t threads : {1U, 4U}) {
    for (Encoding encoding :
         {Encoding::kFloat32, Encoding::kFloat16, Encoding::kBfloat16, Encoding::kInt8}) {
      for (size_t dim : {1, 7, 100, 127, 129, 768, 1025}) {
        constexpr size_t kRows = 50;
        const Rows rows(encoding, kRows, dim);
        rows::Copier copier(rows.format, threads);
        for (size_t count : {0, 1, 8, 1000}) {
          std::vector<int64_t> ids(count);
          for (int64_t& id : ids) id = static_cast<int64_t>(random() % kRows);
          std::vector<int64_t> backwards(count);
          for (size_t i = 0; i < count; ++i) backwards[i] = static_cast<int64_t>(count - 1 - i);
          for (const std::vector<int64_t>& places : {std::vector<int64_t>(), backwards}) {
            std::vector<float> out(count * dim + 1, -77.0F);
            copier.Gather(rows.bytes.data(), std::span<const int64_t>(ids), std::span(places),
                          {out.data(), count * dim});
            bool right = out.back() == -77.0F;  // nothing beyond
            for (size_t i = 0; i < count; ++i) {
              const size_t place = places.empty() ? i : count - 1 - i;
              right &= std::equal(out.begin() + static_cast<ptrdiff_t>(place * dim),
                                  out.begin() + static_cast<ptrdiff_t>((place + 1) * dim),
                                  rows.values.begin() + ids[i] * static_cast<ptrdiff_t>(dim));
            }
            CHECK(right);
          }
        }
      }
    }
  }
}

// Drawer

using sample::Drawer;
using sample::Replace;

// Floyd's choice, as docs/format.md has it.
std::vector<int64_t> Floyd(uint64_t hop_key, uint64_t node, uint32_t root, uint64_t degree,
                           uint64_t count) {
  std::set<int64_t> chosen;
  for (uint32_t i = 0; i < count; ++i) {
    const random::Block block = random::Philox(
        hop_key, {static_cast<uint32_t>(node), static_cast<uint32_t>(node >> 32), root, i / 2});
    const uint64_t bits = i % 2 == 0 ? random::Low64(block) : random::High64(block);
    const uint64_t j = degree - count + i;
    const auto t = static_cast<int64_t>(random::Below(bits, j + 1));
    if (!chosen.insert(t).second) chosen.insert(static_cast<int64_t>(j));
  }
  return {chosen.begin(), chosen.end()};
}

std::vector<int64_t> Draw(Drawer& drawer, uint64_t node, uint64_t degree, uint64_t count,
                          Replace replace = Replace::kNo, uint32_t root = 0) {
  std::vector<int64_t> out(count, -1);
  drawer.Draw(99, node, root, degree, replace, out);
  return out;
}

TEST_CASE("draw: hop keys and picks of docs/format.md") {
  CHECK(sample::HopKey({}, 0) == 0x74728aa9e04ef820);
  CHECK(sample::HopKey({}, 1) == 0x6bf19a3181ea7896);
  CHECK(sample::HopKey({42, 0, 1, 2}, 0) == 0x6bd2fece1d3872ae);
  CHECK(sample::HopKey({~uint64_t{0}, 3, ~0U, ~0U}, 2) == 0x40e493a11e381825);
  Drawer drawer;
  std::vector<int64_t> out(3);
  drawer.Draw(0x6bd2fece1d3872ae, 3, 0, 10, Replace::kNo, out);
  CHECK(out == std::vector<int64_t>{0, 5, 8});
  drawer.Draw(0x6bd2fece1d3872ae, (uint64_t{1} << 32) + 3, 0, 10, Replace::kNo, out);
  CHECK(out == std::vector<int64_t>{2, 5, 8});
}

TEST_CASE("draw: every count of every degree is Floyd's choice, whichever way it is made") {
  Drawer drawer;  // one for all: what it keeps must not show
  for (uint64_t degree : {1, 2, 3, 10, 33, 48, 49, 50, 100, 130, 100000}) {
    for (uint64_t count = 0; count <= std::min<uint64_t>(degree, 130); ++count) {
      std::vector<int64_t> expected = Floyd(99, degree, 0, degree, count);
      REQUIRE(expected.size() == count);
      CHECK(Draw(drawer, degree, degree, count) == expected);
    }
  }
}

TEST_CASE("draw: nodes and roots draw apart, degrees beyond 2^32 are reached") {
  Drawer drawer;
  const uint64_t degree = uint64_t{1} << 40;
  const auto one = Draw(drawer, 5, degree, 20);
  CHECK(one == Draw(drawer, 5, degree, 20));
  CHECK(one != Draw(drawer, 6, degree, 20));
  CHECK(one != Draw(drawer, 5 + (uint64_t{1} << 32), degree, 20));
  CHECK(one != Draw(drawer, 5, degree, 20, Replace::kNo, 1));
  CHECK(one.back() > int64_t{1} << 38);
  CHECK(std::is_sorted(one.begin(), one.end()));
}

TEST_CASE("draw: with replacement positions repeat, and stay below the degree") {
  Drawer drawer;
  CHECK(Draw(drawer, 1, 1, 5, Replace::kYes) == std::vector<int64_t>(5, 0));
  const auto many = Draw(drawer, 1, 3, 1000, Replace::kYes);
  CHECK(std::is_sorted(many.begin(), many.end()));
  for (int64_t position : {0, 1, 2}) {
    CHECK(std::count(many.begin(), many.end(), position) == doctest::Approx(333).epsilon(0.2));
  }
  CHECK(many.back() == 2);
}

TEST_CASE("draw: how many a fanout takes") {
  using sample::DrawCount;
  for (Replace replace : {Replace::kNo, Replace::kYes}) {
    CHECK(DrawCount(0, 5, replace) == 0);
    CHECK(DrawCount(0, -1, replace) == 0);
    CHECK(DrawCount(7, -1, replace) == 7);
    CHECK(DrawCount(7, 0, replace) == 0);
    CHECK(DrawCount(7, 5, replace) == 5);
  }
  CHECK(DrawCount(7, 9, Replace::kNo) == 7);
  CHECK(DrawCount(7, 9, Replace::kYes) == 9);
}

// Samplers

struct Csc {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
};

Csc RandomGraph(size_t nodes, size_t most_degree) {
  std::minstd_rand random(17);
  Csc graph{{0}, {}};
  for (size_t v = 0; v < nodes; ++v) {
    for (size_t degree = random() % (most_degree + 1); degree > 0; --degree) {
      graph.indices.push_back(static_cast<int32_t>(random() % nodes));
    }
    graph.indptr.push_back(static_cast<int64_t>(graph.indices.size()));
  }
  return graph;
}

template <typename T>
std::vector<T> Copy(const memory::Buffer<T>& buffer) {
  return {buffer.data(), buffer.data() + buffer.size()};
}

template <typename Sampler>
void CheckThreads() {
  const Csc graph = RandomGraph(20000, 20);
  sample::ArrayTopology<int32_t> topology(graph.indptr, graph.indices);
  std::vector<int64_t> seeds(4000);
  std::iota(seeds.begin(), seeds.end(), 100);
  Sampler one(topology, {5, 3}, Replace::kNo, 1), many(topology, {5, 3}, Replace::kNo, 5);
  for (uint32_t batch : {0U, 1U, 2U}) {
    const sample::Subgraph& expected = one.Sample({7, 0, 1, batch}, seeds);
    const sample::Subgraph& found = many.Sample({7, 0, 1, batch}, seeds);
    CHECK(Copy(found.nodes) == Copy(expected.nodes));
    CHECK(Copy(found.sources) == Copy(expected.sources));
    CHECK(Copy(found.counts) == Copy(expected.counts));
    CHECK(Copy(found.edge_ids) == Copy(expected.edge_ids));
    CHECK(found.nodes_per_hop == expected.nodes_per_hop);
    CHECK(found.edges_per_hop == expected.edges_per_hop);
    CHECK(found.roots == expected.roots);
    seeds.resize(seeds.size() / 3);
  }
  CHECK(many.capacity_bytes() > 0);
}

TEST_CASE("samplers: one thread and many sample the same") {
  CheckThreads<sample::NeighborSampler>();
  CheckThreads<sample::ShadowSampler>();
}

TEST_CASE("samplers: several at once share a topology, and each is cancelled by itself") {
  const Csc graph = RandomGraph(20000, 20);
  sample::ArrayTopology<int32_t> topology(graph.indptr, graph.indices);
  std::vector<int64_t> seeds(20000);
  std::iota(seeds.begin(), seeds.end(), 0);
  sample::NeighborSampler endless(topology, {5, 5}, Replace::kNo, 3);
  sample::NeighborSampler other(topology, {5, 5}, Replace::kNo, 3);
  // Buffers grow here and not below: TSan knows nothing of mremap, and takes memory that moves from
  // one sampler to the other for a race.
  endless.Sample({}, seeds);
  other.Sample({}, seeds);
  seeds.resize(3000);
  std::atomic<bool> cancelled{false}, begun{false};
  std::thread first([&] {
    try {
      for (uint32_t batch = 0;; ++batch) {
        endless.Sample({1, 0, 0, batch}, seeds);
        begun = true;
      }
    } catch (const threads::Cancelled&) {
      cancelled = true;
    }
  });
  while (!begun) other.Sample({1, 0, 0, 0}, seeds);
  endless.Cancel();
  first.join();
  CHECK(cancelled);
  CHECK(other.Sample({1, 0, 0, 0}, seeds).nodes_per_hop.size() == 3);
}

// Relabelling

using Ids = std::vector<int64_t>;
using Locals = std::vector<uint32_t>;

// Two seeds, 10 and 20; the first hop found 30, 40, 50 and 60, and seed 10 again.
sample::Relabeller FirstHop(int64_t num_nodes, std::span<const int64_t> seeds = Ids{10, 20}) {
  sample::Relabeller relabeller(num_nodes);
  relabeller.Begin(seeds);
  std::vector<uint64_t> first(seeds.size() + 1, 7);
  first[0] = 0;
  first[1] = 3;
  relabeller.Add(first, Ids{30, 40, 50, 60, 10, 30, 50});
  return relabeller;
}

std::vector<int64_t> Frontier(const sample::Relabeller& relabeller) {
  const auto frontier = relabeller.frontier();
  return {frontier.begin(), frontier.end()};
}

TEST_CASE("defer: what is put off comes behind the others, and edges follow") {
  for (int64_t num_nodes : {int64_t{1000}, int64_t{1} << 40}) {
    sample::Relabeller relabeller = FirstHop(num_nodes);
    const sample::Subgraph& found = relabeller.subgraph();
    REQUIRE(Copy(found.nodes) == Ids{10, 20, 30, 40, 50, 60});
    REQUIRE(Copy(found.sources) == Locals{2, 3, 4, 5, 0, 2, 4});
    relabeller.Defer(std::vector<uint8_t>{1, 0, 1, 0});
    CHECK(Copy(found.nodes) == Ids{10, 20, 40, 60, 30, 50});
    CHECK(Copy(found.sources) == Locals{4, 2, 5, 3, 0, 4, 5});
    CHECK(Copy(found.counts) == Locals{3, 4});
    CHECK(found.nodes_per_hop == Ids{2, 2});
    CHECK(found.edges_per_hop == Ids{7});
    CHECK(Frontier(relabeller) == Ids{40, 60});

    // The second hop finds one of them again, and a new node.
    relabeller.Add(std::vector<uint64_t>{0, 2, 3}, Ids{50, 70, 20});
    CHECK(Copy(found.nodes) == Ids{10, 20, 40, 60, 30, 50, 70});
    CHECK(Copy(found.sources) == Locals{4, 2, 5, 3, 0, 4, 5, 5, 6, 1});
    CHECK(found.nodes_per_hop == Ids{2, 2, 3});
    CHECK(found.edges_per_hop == Ids{7, 3});
    CHECK(Frontier(relabeller) == Ids{30, 50, 70});

    // The third expands them with what the second found.
    relabeller.Add(std::vector<uint64_t>{0, 1, 2, 3}, Ids{80, 40, 30});
    CHECK(Copy(found.nodes) == Ids{10, 20, 40, 60, 30, 50, 70, 80});
    CHECK(Copy(found.sources) == Locals{4, 2, 5, 3, 0, 4, 5, 5, 6, 1, 7, 2, 4});
    CHECK(Copy(found.counts) == Locals{3, 4, 2, 1, 1, 1, 1});
    CHECK(found.nodes_per_hop == Ids{2, 2, 3, 1});
    CHECK(Frontier(relabeller) == Ids{80});
  }
}

TEST_CASE("defer: nobody, or nothing said, changes nothing") {
  const sample::Relabeller before = FirstHop(1000);
  for (const auto& deferred : {std::vector<uint8_t>{}, std::vector<uint8_t>(4, 0)}) {
    sample::Relabeller relabeller = FirstHop(1000);
    relabeller.Defer(deferred);
    CHECK(Copy(relabeller.subgraph().nodes) == Copy(before.subgraph().nodes));
    CHECK(Copy(relabeller.subgraph().sources) == Copy(before.subgraph().sources));
    CHECK(relabeller.subgraph().nodes_per_hop == before.subgraph().nodes_per_hop);
    CHECK(Frontier(relabeller) == Ids{30, 40, 50, 60});
  }
}

TEST_CASE("defer: all, so that the next hop expands nobody") {
  sample::Relabeller relabeller = FirstHop(1000);
  const sample::Subgraph& found = relabeller.subgraph();
  relabeller.Defer(std::vector<uint8_t>(4, 1));
  CHECK(Copy(found.nodes) == Ids{10, 20, 30, 40, 50, 60});
  CHECK(found.nodes_per_hop == Ids{2, 0});
  CHECK(Frontier(relabeller).empty());
  relabeller.Add(std::vector<uint64_t>{0}, Ids{});
  CHECK(found.nodes_per_hop == Ids{2, 0, 4});
  CHECK(found.edges_per_hop == Ids{7, 0});
  CHECK(Frontier(relabeller) == Ids{30, 40, 50, 60});
}

TEST_CASE("defer: edges of a seed that occurs twice come from the first, as before") {
  sample::Relabeller relabeller = FirstHop(1000, Ids{10, 20, 10});
  const sample::Subgraph& found = relabeller.subgraph();
  relabeller.Defer(std::vector<uint8_t>{0, 1, 1, 0});
  CHECK(Copy(found.nodes) == Ids{10, 20, 10, 30, 60, 40, 50});
  CHECK(Copy(found.sources) == Locals{3, 5, 6, 4, 0, 3, 6});
  relabeller.Add(std::vector<uint64_t>{0, 1, 2}, Ids{10, 40});
  CHECK(Copy(found.sources) == Locals{3, 5, 6, 4, 0, 3, 6, 0, 5});
  CHECK(found.nodes_per_hop == Ids{3, 2, 2});
}

TEST_CASE("defer: many, of a graph with many ids, and the batch after it has none of them") {
  std::minstd_rand random(11);
  for (int64_t num_nodes : {int64_t{1} << 20, int64_t{1} << 40}) {
    sample::Relabeller relabeller(num_nodes);
    for (int batch = 0; batch < 20; ++batch) {
      Ids neighbours(2000);
      for (int64_t& node : neighbours) node = static_cast<int64_t>(random() % 3000) * 97 + 5;
      relabeller.Begin(Ids{1});
      relabeller.Add(std::vector<uint64_t>{0, neighbours.size()}, neighbours);
      const sample::Subgraph& found = relabeller.subgraph();
      std::vector<uint8_t> deferred(static_cast<size_t>(found.nodes_per_hop.back()));
      for (uint8_t& each : deferred) each = random() % 3 == 0;
      relabeller.Defer(deferred);
      for (size_t e = 0; e < neighbours.size(); ++e) {
        REQUIRE(found.nodes[found.sources[e]] == neighbours[e]);
      }
      // All are known still, wherever they are now.
      const size_t known = found.nodes.size();
      const size_t kept = Frontier(relabeller).size();
      std::vector<uint64_t> first(kept + 1, neighbours.size());
      first[0] = 0;
      relabeller.Add(first, neighbours);
      CHECK(found.nodes.size() == known);
      CHECK(Frontier(relabeller).size() == known - kept - 1);
      for (size_t e = 0; e < neighbours.size(); ++e) {
        REQUIRE(found.nodes[found.sources[neighbours.size() + e]] == neighbours[e]);
      }
    }
  }
}

TEST_CASE("expanding edges: sources, then targets by their counts") {
  std::vector<int64_t> edges(8, -1);
  sample::ExpandEdges(std::vector<uint32_t>{4, 1, 1, 0}, std::vector<uint32_t>{2, 0, 1, 1}, edges);
  CHECK(edges == std::vector<int64_t>{4, 1, 1, 0, 0, 0, 2, 3});
}

}  // namespace
}  // namespace outcrop
