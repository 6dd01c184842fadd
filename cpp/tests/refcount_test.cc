// Slots with reference counts: against a list of nodes, and by threads that delay and give up.
#include "cache/refcount.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace outcrop::cache {
namespace {

using std::chrono::milliseconds;
using Nodes = std::vector<int64_t>;

std::shared_ptr<SlotBuffer> Make(int64_t nodes, int64_t slots, Reuse reuse = Reuse::kLeastRecent) {
  return std::make_shared<SlotBuffer>(nodes, slots, reuse);
}

Nodes ToVector(std::span<const int64_t> values) { return {values.begin(), values.end()}; }

Nodes Sorted(Nodes nodes) {
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

// What the buffer is meant to do, with whole nodes in lists.
struct Model {
  int64_t slots;
  bool counted;
  std::map<int, std::list<int64_t>> standby = {};  // by Rank; the least recently used first
  std::map<int64_t, int> users = {}, counts = {}, uses = {};
  std::map<int, std::set<int64_t>> expected = {};  // by batch, the one that comes first first
  int64_t counted_uses = 0;

  static constexpr int kExpected = 1 << 20;

  // Its uses; of a node that is expected: far more, most where it is expected first.
  int Rank(int64_t node) {
    for (const auto& [batch, nodes] : expected) {
      if (nodes.count(node) > 0) return kExpected - batch;
    }
    return uses[node];
  }

  void Expect(int batch, const std::set<int64_t>& nodes) {
    for (int64_t node : nodes) {
      const bool moves = Rank(node) < kExpected / 2 && Unlink(node);
      expected[batch].insert(node);
      if (moves) standby[Rank(node)].push_back(node);
    }
  }

  void Forget(int batch) {
    expected.erase(batch);
    for (int64_t node : std::exchange(standby[kExpected - batch], {})) {
      standby[Rank(node)].push_back(node);
    }
  }

  int64_t free() const { return slots - static_cast<int64_t>(users.size()); }

  bool Fits(const std::set<int64_t>& nodes) const {
    int64_t wanted = 0;
    for (int64_t node : nodes) wanted += users.count(node) == 0;
    return wanted <= free();
  }

  bool Unlink(int64_t node) {
    for (auto& [_, list] : standby) {
      const auto found = std::find(list.begin(), list.end(), node);
      if (found == list.end()) continue;
      list.erase(found);
      return true;
    }
    return false;
  }

  // -> the nodes that have to be loaded.
  Nodes Reserve(const std::set<int64_t>& nodes, int batch) {
    Nodes loads;
    for (int64_t node : nodes) {
      if (expected.count(batch) > 0) expected[batch].erase(node);
      if (!Unlink(node) && users.count(node) == 0) loads.push_back(node);
      ++users[node];
      if (counted) uses[node] = counts[node] = std::min(counts[node] + 1, 63);
    }
    int64_t kept = 0;
    for (const auto& [_, list] : standby) kept += static_cast<int64_t>(list.size());
    for (auto& [_, list] : standby) {
      for (; kept > free() && !list.empty(); --kept) list.pop_front();
    }
    if (counted) Count(static_cast<int64_t>(nodes.size()));
    return loads;
  }

  void Count(int64_t more) {
    if ((counted_uses += more) < 32 * slots) return;
    counted_uses = 0;
    for (auto& [_, count] : counts) count /= 2;
    std::map<int, std::list<int64_t>> joined;
    for (auto& [times, list] : standby) {
      std::list<int64_t>& target = joined[times > 63 ? times : times / 2];
      target.splice(target.end(), list);
    }
    standby = std::move(joined);
  }

  void Release(const std::set<int64_t>& nodes) {
    for (int64_t node : nodes) {
      if (--users[node] > 0) continue;
      users.erase(node);
      standby[Rank(node)].push_back(node);
    }
  }
};

TEST_CASE("slots are found, shared and reused as in lists, in a small graph and in a huge one") {
  struct Case {
    int64_t stride;
    Reuse reuse;
  };
  for (const auto [stride, reuse] :
       {Case{1, Reuse::kLeastRecent}, Case{1 << 24, Reuse::kLeastRecent},
        Case{1, Reuse::kLeastOften}}) {
    constexpr int64_t kNodes = 60, kSlots = 24;
    const auto buffer = Make(kNodes * stride, kSlots, reuse);
    const bool counted = reuse == Reuse::kLeastOften;
    Model model{kSlots, counted};
    struct Announced {
      Expected expected;
      int batch;
      Nodes left;
    };
    std::list<Announced> announced;
    int batches = 0, unannounced = 0;
    struct Held {
      Claim claim;
      std::set<int64_t> nodes;
    };
    std::list<Held> held;
    std::mt19937 random(11);
    int refused = 0;
    for (int step = 0; step < 60000; ++step) {
      if (!held.empty() && random() % 2 == 0) {
        auto one = std::next(held.begin(), static_cast<ptrdiff_t>(random() % held.size()));
        model.Release(one->nodes);
        held.erase(one);
        continue;
      }
      Nodes wanted(random() % 14);
      for (int64_t& node : wanted) node = static_cast<int64_t>(random() % kNodes) * stride;
      if (random() % 3 == 0) {
        std::optional<Expected> expected = buffer->Expect(Sorted(wanted));
        REQUIRE((counted || !expected));
        unannounced += counted && !expected;
        if (!expected) continue;
        model.Expect(++batches, {wanted.begin(), wanted.end()});
        announced.push_back({std::move(*expected), batches, wanted});
        continue;
      }
      auto batch = announced.end();
      if (!announced.empty() && random() % 4 != 0) {
        batch = std::next(announced.begin(), static_cast<ptrdiff_t>(random() % announced.size()));
        if (batch->left.empty() || random() % 8 == 0) {
          model.Forget(batch->batch);
          announced.erase(batch);
          continue;
        }
        wanted.assign(
            batch->left.begin(),  // a part of it, or all
            batch->left.begin() + 1 + static_cast<ptrdiff_t>(random() % batch->left.size()));
      }
      wanted = Sorted(wanted);  // duplicates stay
      const std::set<int64_t> different(wanted.begin(), wanted.end());
      const bool was_announced = batch != announced.end();
      std::optional<Claim> claim =
          buffer->Reserve(wanted, milliseconds(0), was_announced ? &batch->expected : nullptr);
      REQUIRE(claim.has_value() == model.Fits(different));
      if (!claim) {
        ++refused;
        REQUIRE(buffer->num_standby() == model.free());
        continue;
      }
      const Nodes loads = model.Reserve(different, was_announced ? batch->batch : -1);
      if (was_announced)
        batch->left.erase(batch->left.begin(),
                          batch->left.begin() + static_cast<ptrdiff_t>(wanted.size()));
      REQUIRE(ToVector(claim->loads().nodes) == loads);
      REQUIRE(claim->found() + claim->shared() + loads.size() == wanted.size());
      claim->Loaded();
      REQUIRE(claim->Collect(milliseconds(0)));
      held.push_back({std::move(*claim), different});
      // One slot per node, whoever holds it.
      std::map<int64_t, int64_t> slot_of;
      std::set<int64_t> slots;
      size_t i = 0;
      for (int64_t node : wanted) slot_of[node] = held.back().claim.slots()[i++];
      for (const auto& [node, slot] : slot_of) REQUIRE(slots.insert(slot).second);
      REQUIRE(buffer->num_standby() == model.free());
    }
    CHECK(refused > 100);
    CHECK((batches > 100) == counted);
    CHECK((unannounced > 0) == counted);  // only so many at a time
    held.clear();
    announced.clear();
    CHECK(buffer->num_standby() == kSlots);
  }
}

TEST_CASE("what the next batches want outlives what is used often; the next one's rows longest") {
  for (const int64_t nodes : {int64_t{100000}, int64_t{1} << 40}) {
    const auto buffer = Make(nodes, 4, Reuse::kLeastOften);
    const auto found = [&](const Nodes& wanted, const Expected* expected = nullptr) {
      std::optional<Claim> claim = buffer->Reserve(wanted, milliseconds(0), expected);
      claim->Loaded();
      return claim->found();
    };
    for (int i = 0; i < 5; ++i) found({1, 2});
    found({3, 4});
    std::optional<Expected> next = buffer->Expect(Nodes{3});
    std::optional<Expected> later = buffer->Expect(Nodes{4, 3});
    found({5, 6});     // in place of 1 and 2
    found({7, 8, 9});  // and of 4
    CHECK(found({3}, &*next) == 1);
    CHECK(found({4}, &*later) == 0);
    // Given up: as if it had never been expected.
    later.reset();
    next = buffer->Expect(Nodes{10, 11});
    found({10});
    next->Forget();
    found({12, 13, 14, 15});
    CHECK(found({10}) == 0);
  }
}

TEST_CASE("which rows are read with others follows from pages and gaps") {
  std::mt19937 random(7);
  for (const auto& [base, row, unit, gap] :
       {RowLayout{0, 512, 4096, 0}, RowLayout{128, 400, 4096, 8192}, RowLayout{4096, 9000, 4096, 0},
        RowLayout{64, 1, 512, 100}, RowLayout{0, 4096, 4096, 4096}, RowLayout{7, 33, 1, 50}}) {
    for (int round = 0; round < 50; ++round) {
      constexpr int64_t kNodes = 300;
      std::set<int64_t> nodes;
      for (size_t i = random() % 20; i > 0; --i)
        nodes.insert(static_cast<int64_t>(random() % kNodes));
      std::vector<bool> read(base + kNodes * row + 2 * unit);  // by byte
      uint64_t end = 0;
      for (int64_t node : nodes) {
        const uint64_t first = base + static_cast<uint64_t>(node) * row;
        const uint64_t begin = first / unit * unit;
        const bool joined = end > 0 && begin <= end + gap;
        const uint64_t from = joined ? std::min(end, begin) : begin;
        end = (first + row + unit - 1) / unit * unit;
        std::fill(read.begin() + static_cast<ptrdiff_t>(from),
                  read.begin() + static_cast<ptrdiff_t>(end), true);
      }
      Nodes expected, found;
      for (int64_t node = 0; node < kNodes; ++node) {
        const auto first = read.begin() + static_cast<ptrdiff_t>(base + node * row);
        if (std::find(first, first + static_cast<ptrdiff_t>(row), false) ==
            first + static_cast<ptrdiff_t>(row)) {
          expected.push_back(node);
        }
      }
      ForReadWith(Nodes(nodes.begin(), nodes.end()), kNodes, {base, row, unit, gap},
                  [&](int64_t node) {
                    found.push_back(node);
                    return true;
                  });
      REQUIRE(found == expected);
    }
  }
}

TEST_CASE("rows that are expected ride along with the pages of others") {
  const RowLayout layout{0, 512, 4096, 4096};  // eight to a page
  const auto buffer = std::make_shared<SlotBuffer>(250, 8, Reuse::kLeastOften, layout);
  const auto claim = [&](const Nodes& wanted) { return buffer->Reserve(wanted, milliseconds(0)); };
  const std::optional<Expected> next = buffer->Expect(Nodes{3, 12, 40});
  std::optional<Claim> first = claim({2, 16, 17, 100});
  // 12 is in the gap between two pages; 40 is in no page that is read.
  CHECK(ToVector(first->loads().nodes) == Nodes{2, 3, 12, 16, 17, 100});
  CHECK(first->slots().size() == 4);
  CHECK(buffer->num_standby() == 2);
  std::optional<Claim> second = claim({3});
  CHECK(second->shared() == 1);
  first->Loaded();
  CHECK(second->Collect(milliseconds(0)));
  CHECK(buffer->num_standby() == 3);  // who brought them does not hold them
  second.reset();
  first.reset();
  CHECK(claim({3, 12})->found() == 2);

  // None of those that are expected sooner makes room.
  const std::optional<Expected> later = buffer->Expect(Nodes{200, 201, 202, 203});
  std::optional<Claim> third = claim({204, 205, 206, 207, 208, 209});
  CHECK(ToVector(third->loads().nodes) == Nodes{204, 205, 206, 207, 208, 209});
  // What is given up is forgotten, with all that rode along.
  third.reset();
  std::optional<Claim> fourth = claim({204, 205});  // one for two is the most that rides
  CHECK(ToVector(fourth->loads().nodes) == Nodes{200, 204, 205});
  fourth.reset();
  CHECK(buffer->num_standby() == 8);
  CHECK(claim({200})->found() == 0);
  CHECK(claim({3, 12})->found() == 2);

  // Where nodes share what is known of them, none rides.
  const auto large = std::make_shared<SlotBuffer>(int64_t{1} << 40, 8, Reuse::kLeastOften, layout);
  const std::optional<Expected> guess = large->Expect(Nodes{1, 3});
  CHECK(ToVector(large->Reserve(Nodes{2, 4}, milliseconds(0))->loads().nodes) == Nodes{2, 4});
}

TEST_CASE("a row that another claim loads is waited for, not read again") {
  const auto buffer = Make(100, 10);
  std::optional<Claim> first = buffer->Reserve(Nodes{1, 2, 3}, milliseconds(0));
  std::optional<Claim> second = buffer->Reserve(Nodes{2, 2, 3, 4}, milliseconds(0));
  CHECK(ToVector(second->loads().nodes) == Nodes{4});
  CHECK(second->found() == 0);
  CHECK(second->shared() == 3);
  CHECK(second->slots()[0] == first->slots()[1]);
  CHECK(second->slots()[1] == first->slots()[1]);
  second->Loaded();
  CHECK_FALSE(second->Collect(milliseconds(1)));
  first->Loaded();
  CHECK(second->Collect(milliseconds(0)));
  first->Release();
  second->Release();
  const std::optional<Claim> third = buffer->Reserve(Nodes{1, 2, 3, 4}, milliseconds(0));
  CHECK(third->found() == 4);
}

TEST_CASE("loads that were given up are taken over by one of those who wait") {
  const auto buffer = Make(100, 10);
  std::optional<Claim> first = buffer->Reserve(Nodes{1, 2, 3}, milliseconds(0));
  std::optional<Claim> second = buffer->Reserve(Nodes{2, 3}, milliseconds(0));
  std::optional<Claim> third = buffer->Reserve(Nodes{3}, milliseconds(0));
  first.reset();
  CHECK_FALSE(second->Collect(milliseconds(0)));
  CHECK(ToVector(second->loads().nodes) == Nodes{2, 3});
  CHECK_FALSE(third->Collect(milliseconds(0)));
  CHECK(third->loads().nodes.size() == 0);
  // Node 1 is forgotten, and its slot is the next to be used.
  const std::optional<Claim> fourth = buffer->Reserve(Nodes{1}, milliseconds(0));
  CHECK(ToVector(fourth->loads().nodes) == Nodes{1});
  second->Loaded();
  CHECK(second->Collect(milliseconds(0)));
  CHECK(third->Collect(milliseconds(0)));
}

TEST_CASE("loads that were given up are loaded by a newcomer, too") {
  const auto buffer = Make(100, 10);
  std::optional<Claim> first = buffer->Reserve(Nodes{5}, milliseconds(0));
  std::optional<Claim> second = buffer->Reserve(Nodes{5}, milliseconds(0));
  first.reset();
  std::optional<Claim> third = buffer->Reserve(Nodes{5}, milliseconds(0));
  CHECK(ToVector(third->loads().nodes) == Nodes{5});
  CHECK_FALSE(second->Collect(milliseconds(0)));
  CHECK(second->loads().nodes.size() == 0);
  third->Loaded();
  CHECK(second->Collect(milliseconds(0)));
}

TEST_CASE("a reservation waits for a release, and holds nothing meanwhile") {
  const auto buffer = Make(100, 4);
  std::optional<Claim> first = buffer->Reserve(Nodes{1, 2, 3}, milliseconds(0));
  first->Loaded();
  CHECK_FALSE(buffer->Reserve(Nodes{4, 5}, milliseconds(1)).has_value());
  CHECK(buffer->num_standby() == 1);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(20));
    first->Release();
  });
  const std::optional<Claim> second = buffer->Reserve(Nodes{1, 4, 5}, milliseconds(60000));
  later.join();
  REQUIRE(second.has_value());
  CHECK(ToVector(second->loads().nodes) == Nodes{4, 5});
}

TEST_CASE("rows are never stale, whoever is late or gives up") {
  constexpr int64_t kNodes = 400, kSlots = 90;
  constexpr size_t kThreads = 4;
  constexpr int kBatches = 1500;
  const RowLayout layout{0, 512, 4096, 0};
  const auto buffer = std::make_shared<SlotBuffer>(kNodes, kSlots, Reuse::kLeastOften, layout);
  std::vector<int64_t> rows(kSlots, -1);  // plain memory: TSan sees a row that is read too early
  std::atomic<int> stale{0}, given_up{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int batch = 0; batch < kBatches; ++batch) {
      Nodes wanted(1 + random() % (kSlots / 2));
      for (int64_t& node : wanted) node = static_cast<int64_t>(random() % kNodes);
      wanted = Sorted(wanted);
      std::optional<Expected> expected;
      if (random() % 2 == 0) expected = buffer->Expect(wanted);
      if (random() % 20 == 0) expected.reset();
      std::optional<Claim> claim =
          buffer->Reserve(wanted, milliseconds(60000), expected ? &*expected : nullptr);
      REQUIRE(claim.has_value());
      bool gives_up = false;
      do {
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
        if ((gives_up = random() % 20 == 0)) break;
        const Claim::Loads& loads = claim->loads();
        for (size_t i = 0; i < loads.nodes.size(); ++i) {
          rows[static_cast<size_t>(loads.slots[i])] = loads.nodes[i];
        }
        claim->Loaded();
      } while (!claim->Collect(milliseconds(60000)));
      given_up += gives_up;
      if (gives_up) continue;
      for (size_t i = 0; i < wanted.size(); ++i) {
        stale += rows[static_cast<size_t>(claim->slots()[i])] != wanted[i];
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  CHECK(stale == 0);
  CHECK(given_up > 100);
  CHECK(buffer->num_standby() == kSlots);
}

TEST_CASE("a small buffer costs no entry for each node of a large graph") {
  for (const Reuse reuse : {Reuse::kLeastRecent, Reuse::kLeastOften}) {
    CHECK(SlotBuffer::Bytes(int64_t{1} << 30, 1000, reuse) < 100000);
  }
}

TEST_CASE("what is used often outlives any number of nodes that are used once; what was does not") {
  for (const int64_t nodes : {int64_t{100000}, int64_t{1} << 40}) {
    const auto buffer = Make(nodes, 10, Reuse::kLeastOften);
    const auto found = [&](const Nodes& wanted) {
      std::optional<Claim> claim = buffer->Reserve(wanted, milliseconds(0));
      claim->Loaded();
      return claim->found();
    };
    const Nodes often{1, 2, 3}, later{4, 5, 6, 7, 8, 9, 10};
    for (int i = 0; i < 5; ++i) found(often);
    for (int64_t node = 100; node < 130; ++node) found(Nodes{node});
    CHECK(found(often) == 3);
    for (int i = 0; i < 200; ++i) found(later);
    found(Nodes{11, 12, 13});
    CHECK(found(later) == 7);
    CHECK(found(often) == 0);
  }
}

}  // namespace
}  // namespace outcrop::cache
