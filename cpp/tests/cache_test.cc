// Caches: node tables against std::map, policies against real slots, Belady against LRU.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cache/belady.h"
#include "cache/lru.h"
#include "cache/node_table.h"
#include "cache/static_slots.h"
#include "rows/copier.h"

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
  CHECK(NodeTable::TouchedBytes(100'000'000, 8'000'000) == 260'417 * 64 + 32'000'000);
  CHECK(NodeTable::TouchedBytes(0, 0) == 0);
}

TEST_CASE("touched nodes are numbered in the order of their ids") {
  std::mt19937 random(5);
  for (const int64_t nodes : {1, 64, 383, 384, 385, 5000}) {
    for (const uint64_t share : {0, 1, 30, 99, 100}) {
      TouchedNodes touched(nodes);
      std::vector<int64_t> given;
      std::set<int64_t> model;
      for (int64_t node = 0; node < nodes; ++node) {
        if (random() % 100 < share) given.push_back(node);
      }
      std::shuffle(given.begin(), given.end(), random);
      for (const int64_t node : given) {
        REQUIRE(touched.Add(node));
        REQUIRE(!touched.Add(node));
        model.insert(node);
      }
      touched.Add(given);  // nobody is new
      REQUIRE(touched.count() == model.size());
      touched.Seal();
      uint32_t place = 0;
      for (int64_t node = 0; node < nodes; ++node) {
        REQUIRE(touched.Place(node) == (model.contains(node) ? place++ : TouchedNodes::kNone));
      }
    }
  }
}

TEST_CASE("a table of touched nodes agrees with a map, and forgets all others") {
  TouchedNodes touched(1000);
  for (int64_t node = 0; node < 1000; node += 3) touched.Add(node);
  touched.Seal();
  NodeTable table(touched);
  CHECK(!table.dense());
  std::map<int64_t, uint32_t> model;
  std::mt19937 random(8);
  for (uint32_t step = 0; step < 20000; ++step) {
    const auto node = static_cast<int64_t>(random() % 1000);
    const auto found = model.find(node);
    const uint32_t before = found == model.end() ? NodeTable::kNone : found->second;
    REQUIRE(table.Get(node) == before);
    if (random() % 3 == 0) {
      table.Erase(node);
      model.erase(node);
    } else {
      REQUIRE(table.Exchange(node, step) == before);
      if (node % 3 == 0) model[node] = step;
    }
  }
}

TEST_CASE("static slots are found in tables of either kind") {
  CHECK(StaticSlots::Bytes(16'000'000, 4'000'000) == 64'000'000);
  CHECK(StaticSlots::Bytes(100'000'000, 8'000'000) == 260'417 * 64 + 32'000'000);
  CHECK(StaticSlots::Bytes(100'000'000, 200'000'000) == 400'000'000);
  CHECK(StaticSlots::Bytes(int64_t{1} << 40, 1000) == 2048 * 16);
  for (const int64_t nodes : {int64_t{20'000}, int64_t{20'000'000}, int64_t{1} << 40}) {
    std::vector<int64_t> cached, asked;
    for (int64_t i = 0; i < 300'000 && nodes == 20'000'000; ++i) cached.push_back(i * 41 % nodes);
    for (int64_t i = 0; cached.size() < 1000; ++i) cached.push_back(i * (nodes / 1000));
    std::reverse(cached.begin(), cached.end());
    for (const int64_t node : cached) asked.insert(asked.end(), {node, (node + 1) % nodes});
    std::map<int64_t, int32_t> model;
    for (const int64_t node : cached) model.emplace(node, static_cast<int32_t>(model.size()));
    std::vector<int32_t> found(asked.size());
    StaticSlots(nodes, cached).Find(asked, found);
    size_t wrong = 0;
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto slot = model.find(asked[i]);
      wrong += found[i] != (slot == model.end() ? kMiss : slot->second) ? 1 : 0;
    }
    CHECK(wrong == 0);
  }
}

using Batches = std::vector<std::vector<int64_t>>;

// Skewed, some nodes twice in a batch.
Batches RandomBatches(std::mt19937& random, int64_t nodes) {
  Batches batches(20);
  for (auto& batch : batches) {
    for (int i = 0; i < 30; ++i) {
      const double x = static_cast<double>(random() % 100) / 100;
      batch.push_back(static_cast<int64_t>(x * x * static_cast<double>(nodes)));
    }
  }
  return batches;
}

// Carries changes out on slots that hold node ids; counts the rows that had to be read.
class Slots {
 public:
  explicit Slots(uint32_t count) : held_(count, -1) {}

  void CarryOut(std::span<const int64_t> nodes, std::span<const int32_t> slots,
                const Changes& changes) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (slots[i] == kMiss) {
        ++reads;
      } else {
        REQUIRE(held_[static_cast<size_t>(slots[i])] == nodes[i]);
      }
    }
    for (size_t i = 0; i < changes.slots.size(); ++i) {
      REQUIRE(slots[changes.positions[i]] == kMiss);
      held_[changes.slots[i]] = nodes[changes.positions[i]];
    }
  }

  void Hold(std::vector<int64_t> nodes) { held_ = std::move(nodes); }

  int reads = 0;

 private:
  std::vector<int64_t> held_;
};

int LruReads(const Batches& batches, int64_t nodes, uint32_t slots) {
  Lru lru(nodes, slots);
  Slots real(slots);
  Changes changes;
  for (const auto& batch : batches) {
    std::vector<int32_t> found(batch.size());
    lru.Step(batch, found, changes);
    real.CarryOut(batch, found, changes);
  }
  return real.reads;
}

enum class Tables { kByNode, kTouched };

// A superbatch -> where its rows were found, and which slots were written.
std::vector<int64_t> PlanSuperbatch(Belady& belady, const Batches& batches, Slots& real,
                                    Tables tables = Tables::kByNode) {
  std::vector<int64_t> done;
  Changes changes;
  const auto count = static_cast<uint32_t>(batches.size());
  std::vector<std::vector<uint32_t>> next(count);
  for (const auto& batch : batches) {
    if (tables == Tables::kTouched) belady.Mark(batch);
  }
  belady.Begin(count, 10);
  for (uint32_t t = count; t-- > 0;) {
    next[t].resize(batches[t].size());
    belady.LookBack(t, batches[t], next[t]);
  }
  belady.TurnAround();
  for (uint32_t t = 0; t < count; ++t) {
    std::vector<int32_t> found(batches[t].size());
    belady.Step(t, batches[t], next[t], found, changes);
    real.CarryOut(batches[t], found, changes);
    done.insert(done.end(), found.begin(), found.end());
    for (size_t i = 0; i < changes.slots.size(); ++i) done.push_back(changes.slots[i]);
  }
  belady.End();
  return done;
}

int BeladyReads(const Batches& batches, int64_t nodes, uint32_t slots, bool goes_on) {
  Belady belady(nodes, slots, goes_on);
  Slots real(slots);
  for (int superbatch = 0; superbatch < 2; ++superbatch) {
    if (!goes_on) {
      belady.Clear();
      real = Slots(slots);
    }
    PlanSuperbatch(belady, batches, real);
  }
  return real.reads;
}

std::vector<int64_t> Copy(std::span<const int64_t> nodes) { return {nodes.begin(), nodes.end()}; }

TEST_CASE("plans find the right rows, and Belady reads no more than LRU") {
  std::mt19937 random(3);
  for (const int64_t nodes : {int64_t{100}, int64_t{1} << 33}) {
    for (const uint32_t slots : {0U, 1U, 7U, 60U, 200U}) {
      const Batches batches = RandomBatches(random, nodes);
      const int lru = LruReads(batches, nodes, slots);
      CHECK(BeladyReads(batches, nodes, slots, false) <= lru);
      CHECK(BeladyReads(batches, nodes, slots, true) <= 2 * lru);
    }
  }
}

TEST_CASE("Belady plans the same over marked nodes") {
  std::mt19937 random(6);
  for (const uint32_t slots : {0U, 1U, 7U, 60U, 200U}) {
    for (const bool goes_on : {false, true}) {
      Belady one(2000, slots, goes_on), other(2000, slots, goes_on);
      Slots real(slots), same(slots);
      for (int superbatch = 0; superbatch < 4; ++superbatch) {
        const Batches batches = RandomBatches(random, superbatch % 2 == 0 ? 100 : 2000);
        CHECK(PlanSuperbatch(other, batches, same, Tables::kTouched) ==
              PlanSuperbatch(one, batches, real));
        CHECK(Copy(other.nodes()) == Copy(one.nodes()));
      }
      CHECK(same.reads == real.reads);
    }
  }
}

TEST_CASE("marks are forgotten with the superbatch that they are of") {
  Belady belady(10, 2, true);
  CHECK(belady.Mark(std::vector<int64_t>{1, 2, 1}) == 2);
  CHECK(belady.Mark(std::vector<int64_t>{2, 3}) == 3);
  belady.Clear();
  CHECK(belady.Mark(std::vector<int64_t>{5}) == 1);
  belady.Restore(std::vector<int64_t>{4, -1});
  Slots real(2);
  real.Hold({4, -1});
  PlanSuperbatch(belady, {{4, 6}, {6, 4}}, real);
  CHECK(real.reads == 1);
}

TEST_CASE("a restored Belady plans just as the one that its contents are from") {
  std::mt19937 random(4);
  for (const int64_t nodes : {int64_t{100}, int64_t{1} << 33}) {
    for (const uint32_t slots : {0U, 1U, 7U, 60U, 200U}) {
      for (const bool goes_on : {false, true}) {
        Belady one(nodes, slots, goes_on);
        Slots real(slots);
        for (int superbatch = 0; superbatch < 3; ++superbatch) {
          PlanSuperbatch(one, RandomBatches(random, nodes), real);
        }
        const std::vector<int64_t> contents = Copy(one.nodes());
        Belady other(nodes, slots, goes_on);
        Slots same = real;
        const Batches left = RandomBatches(random, nodes);
        PlanSuperbatch(other, left, same);  // whatever was there is forgotten
        other.Restore(contents);
        CHECK(Copy(other.nodes()) == contents);
        same = real;
        CHECK(PlanSuperbatch(other, left, same) == PlanSuperbatch(one, left, real));
        CHECK(same.reads == real.reads);
        CHECK(Copy(other.nodes()) == Copy(one.nodes()));
      }
    }
  }
}

TEST_CASE("Belady is restored in the middle of a superbatch") {
  const Batches batches{{1, 2}, {3, 1}, {2, 3}};
  Belady belady(10, 2, true);
  belady.Begin(3, 10);
  std::vector<uint32_t> next(2);
  belady.LookBack(2, batches[2], next);
  belady.Restore(std::vector<int64_t>{3, -1});
  Slots real(2);
  real.Hold({3, -1});
  PlanSuperbatch(belady, batches, real);
  CHECK(real.reads == 3);  // 1 and 2, and 2 again
}

TEST_CASE("in a restored LRU the lower slots leave first") {
  Lru lru(10, 3);
  Changes changes;
  std::vector<int32_t> found(1);
  lru.Step(std::vector<int64_t>{9}, found, changes);
  lru.Restore(std::vector<int64_t>{5, -1, 3});
  CHECK(Copy(lru.nodes()) == std::vector<int64_t>{5, -1, 3});
  Slots real(3);
  real.Hold({5, -1, 3});
  const auto step = [&](int64_t node) {
    const std::vector<int64_t> batch{node};
    lru.Step(batch, found, changes);
    real.CarryOut(batch, found, changes);
    return found[0] == kMiss ? static_cast<int32_t>(changes.slots[0]) : found[0];
  };
  CHECK(step(9) == 1);  // the free slot
  CHECK(step(7) == 0);  // for 5
  CHECK(step(3) == 2);
  CHECK(step(4) == 1);  // for 9: 3 was used since
  CHECK(real.reads == 3);
}

template <typename Policy>
void RefusesWrongContents(Policy policy) {
  const std::vector<int64_t> good{4, -1, 9};
  policy.Restore(good);
  for (const std::vector<int64_t>& wrong : std::vector<std::vector<int64_t>>{
           {4, 9}, {4, 9, -1, -1}, {4, 10, -1}, {-2, 4, 9}, {4, 9, 4}, {}}) {
    CHECK_THROWS_AS(policy.Restore(wrong), std::invalid_argument);
    CHECK(Copy(policy.nodes()) == good);
  }
}

TEST_CASE("contents that cannot be are refused, and those before stay") {
  RefusesWrongContents(Belady(10, 3, true));
  RefusesWrongContents(Lru(10, 3));
  Lru lru(10, 1);
  lru.Restore(std::vector<int64_t>{4});
  CHECK_THROWS_AS(lru.Restore(std::vector<int64_t>{10}), std::invalid_argument);
  std::vector<int32_t> found(1);
  Changes changes;
  lru.Step(std::vector<int64_t>{4}, found, changes);
  CHECK(found[0] == 0);
}

TEST_CASE("rows go from slots to their places and back") {
  constexpr size_t kDim = 3;
  constexpr size_t kRowBytes = kDim * sizeof(float);
  std::vector<float> cached(1000 * kDim), batch(700 * kDim, -1), expected(700 * kDim, -1);
  for (size_t i = 0; i < cached.size(); ++i) cached[i] = static_cast<float>(i);
  std::vector<int32_t> slots(700);
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i] = i % 3 == 0 ? kMiss : static_cast<int32_t>(i * 7 % 1000);
    for (size_t k = 0; k < kDim && slots[i] != kMiss; ++k) {
      expected[i * kDim + k] = cached[static_cast<size_t>(slots[i]) * kDim + k];
    }
  }
  rows::Copier copier({kRowBytes, kDim, rows::Encoding::kFloat32}, 2);
  auto* memory = reinterpret_cast<std::byte*>(cached.data());
  copier.Gather(memory, std::span<const int32_t>(slots), std::span<const uint32_t>(), batch);
  CHECK(batch == expected);
  const std::vector<uint32_t> positions{4, 8, 699}, into{999, 0, 5};
  copier.Update(reinterpret_cast<const std::byte*>(batch.data()), positions, into, memory);
  CHECK(cached[999 * kDim] == batch[4 * kDim]);
  CHECK(cached[5 * kDim + 2] == batch[699 * kDim + 2]);
}

}  // namespace
}  // namespace outcrop::cache
