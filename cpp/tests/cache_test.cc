// Caches: the node table against std::map, policies against real slots, Belady against LRU.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

#include "cache/belady.h"
#include "cache/lru.h"
#include "cache/node_table.h"
#include "gather/slots.h"

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

int BeladyReads(const Batches& batches, int64_t nodes, uint32_t slots, bool goes_on) {
  Belady belady(nodes, slots, goes_on);
  Slots real(slots);
  Changes changes;
  const auto count = static_cast<uint32_t>(batches.size());
  for (int superbatch = 0; superbatch < 2; ++superbatch) {
    if (!goes_on) {
      belady.Clear();
      real = Slots(slots);
    }
    std::vector<std::vector<uint32_t>> next(count);
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
    }
    belady.End();
  }
  return real.reads;
}

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
  parallel::Pool pool(2);
  auto* memory = reinterpret_cast<std::byte*>(cached.data());
  const gather::RowArray rows{memory, kRowBytes, kDim, gather::Encoding::kFloat32};
  gather::GatherSlots(rows, slots, pool, batch);
  CHECK(batch == expected);
  const std::vector<uint32_t> positions{4, 8, 699}, into{999, 0, 5};
  gather::UpdateSlots(reinterpret_cast<const std::byte*>(batch.data()), kRowBytes, positions, into,
                      pool, memory);
  CHECK(cached[999 * kDim] == batch[4 * kDim]);
  CHECK(cached[5 * kDim + 2] == batch[699 * kDim + 2]);
}

}  // namespace
}  // namespace outcrop::cache
