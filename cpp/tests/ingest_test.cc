// Ingest: packing, sorting, merging, CSC, compaction and text, on random input.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ingest/compact.h"
#include "ingest/csc.h"
#include "ingest/edge.h"
#include "ingest/merge.h"
#include "ingest/pack.h"
#include "ingest/sort.h"
#include "ingest/text.h"

namespace outcrop::ingest {
namespace {

using Record = NumberedEdge<uint32_t>;
using Key = std::tuple<uint32_t, uint32_t, int64_t>;

std::vector<Record> RandomRecords(size_t count, uint32_t nodes, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<Record> records(count);
  for (size_t i = 0; i < count; ++i) {
    records[i] = {static_cast<uint32_t>(random()) % nodes, static_cast<uint32_t>(random()) % nodes,
                  static_cast<int64_t>(i)};
  }
  return records;
}

std::vector<Key> Keys(std::span<const Record> records) {
  std::vector<Key> keys;
  for (const Record& r : records) keys.emplace_back(r.target, r.source, r.number);
  return keys;
}

std::vector<Key> Expected(std::vector<Record> records, Order order) {
  std::stable_sort(records.begin(), records.end(),
                   [&](const Record& a, const Record& b) { return Before(a, b, order); });
  if (order == Order::kTargetSource) {
    records.erase(std::unique(records.begin(), records.end(), SameEdge<Record>), records.end());
  }
  return Keys(records);
}

TEST_CASE("the sort is stable and merges multi-edges where wanted") {
  for (Order order : {Order::kTarget, Order::kTargetSource}) {
    for (uint32_t nodes : {1U, 5U, 3000U, 5000000U}) {
      auto records = RandomRecords(5000, nodes, nodes);
      const auto expected = Expected(records, order);
      std::vector<Record> scratch(records.size());
      const Sorted sorted = Sort(std::span(records), std::span(scratch), order);
      auto& result = sorted.in_scratch ? scratch : records;
      result.resize(sorted.records);
      CHECK(Keys(result) == expected);
    }
  }
}

TEST_CASE("merged runs are as if sorted at once, whatever the windows") {
  std::minstd_rand random(5);
  for (int round = 0; round < 60; ++round) {
    const Order order = round % 2 == 0 ? Order::kTarget : Order::kTargetSource;
    const size_t count = random() % 400, runs = 1 + random() % 6;
    const auto all = RandomRecords(count, 1 + static_cast<uint32_t>(random() % 40), random());
    std::vector<std::vector<Record>> run(runs);
    for (size_t i = 0; i < count; ++i) run[i * runs / count].push_back(all[i]);
    for (auto& part : run) {
      std::vector<Record> scratch(part.size());
      const Sorted sorted = Sort(std::span(part), std::span(scratch), order);
      if (sorted.in_scratch) part.swap(scratch);
      part.resize(sorted.records);
    }
    Merger<Record> merger(runs, order);
    std::vector<size_t> given(runs, 0);
    std::vector<bool> ended(runs, false);
    std::vector<Record> merged, out(1 + random() % 30);
    for (;;) {
      for (size_t r = 0; r < runs; ++r) {
        if (!merger.WindowEmpty(r) || ended[r]) continue;
        const size_t size = std::min<size_t>(1 + random() % 20, run[r].size() - given[r]);
        const auto window = std::span<const Record>(run[r]).subspan(given[r], size);
        given[r] += size;
        ended[r] = given[r] == run[r].size();
        merger.SetWindow(r, window, ended[r]);
      }
      const size_t got = merger.Merge(out);
      merged.insert(merged.end(), out.begin(), out.begin() + static_cast<long>(got));
      if (got == 0 && std::find(ended.begin(), ended.end(), false) == ended.end()) break;
    }
    CHECK(Keys(merged) == Expected(all, order));
  }
}

TEST_CASE("CSC comes out whole through buffers of any size") {
  auto records = RandomRecords(500, 60, 3);
  std::vector<Record> scratch(records.size());
  if (Sort(std::span(records), std::span(scratch), Order::kTarget).in_scratch) {
    records.swap(scratch);
  }
  CscWriter writer(70);  // the last ten nodes have no edges
  std::vector<int64_t> indptr, offsets(3), numbers(500), all_numbers;
  std::vector<int32_t> indices(500), all_indices;
  std::span<const Record> rest(records);
  while (!rest.empty()) {
    const auto some = rest.first(std::min<size_t>(rest.size(), 17));
    const auto wrote =
        writer.Write(some, std::span(indices), std::span(numbers), std::span(offsets));
    all_indices.insert(all_indices.end(), indices.begin(),
                       indices.begin() + static_cast<long>(wrote.records));
    all_numbers.insert(all_numbers.end(), numbers.begin(),
                       numbers.begin() + static_cast<long>(wrote.records));
    indptr.insert(indptr.end(), offsets.begin(),
                  offsets.begin() + static_cast<long>(wrote.offsets));
    rest = rest.subspan(wrote.records);
  }
  while (const size_t count = writer.Finish(offsets)) {
    indptr.insert(indptr.end(), offsets.begin(), offsets.begin() + static_cast<long>(count));
  }
  REQUIRE(indptr.size() == 71);
  CHECK(indptr.front() == 0);
  CHECK(indptr.back() == 500);
  CHECK(writer.num_edges() == 500);
  for (size_t node = 0; node < 70; ++node) {
    for (int64_t edge = indptr[node]; edge < indptr[node + 1]; ++edge) {
      const auto& record = records[static_cast<size_t>(edge)];
      CHECK(record.target == node);
      CHECK(all_indices[static_cast<size_t>(edge)] == static_cast<int32_t>(record.source));
      CHECK(all_numbers[static_cast<size_t>(edge)] == record.number);
    }
  }
}

TEST_CASE("packing stops at a bad id and says where") {
  const std::vector<int64_t> sources{0, 1, 2, -1}, targets{1, 1, 0, 0};
  std::vector<Record> out(10);
  PackOptions options;
  options.num_nodes = 3;
  options.undirected = true;
  options.drop_loops = true;
  const Packed packed = Pack(std::span(sources), std::span(targets), options, 100, std::span(out));
  CHECK(packed.bad_id);
  CHECK(packed.edges == 3);
  CHECK(packed.records == 4);
  CHECK(out[3].number == 102);
  std::vector<Record> tiny(3);
  CHECK(Pack(std::span(sources), std::span(targets), options, 0, std::span(tiny)).edges == 1);
}

TEST_CASE("an id set ranks and lists its ids") {
  std::minstd_rand random(2);
  std::set<int64_t> ids;
  for (int i = 0; i < 300; ++i) ids.insert(static_cast<int64_t>(random() % 5000));
  IdSet set(5000);
  const std::vector<int64_t> given(ids.begin(), ids.end());
  REQUIRE(set.Add(given));
  CHECK(set.AddNew(given) == 0);  // all are there
  CHECK(set.Seal() == ids.size());
  for (size_t i = 0; i < given.size(); ++i) CHECK(set.Rank(static_cast<uint64_t>(given[i])) == i);
  std::vector<int64_t> listed, some(7);
  for (uint64_t from = 0; const size_t count = set.List(&from, some);) {
    listed.insert(listed.end(), some.begin(), some.begin() + static_cast<long>(count));
  }
  CHECK(listed == given);
  const std::vector<int64_t> beyond{5000}, negative{-1};
  CHECK(!IdSet(5000).Add(beyond));
  CHECK(!IdSet(5000).Add(negative));
}

TEST_CASE("a carriage return ends no line") {
  std::vector<int64_t> sources(9), targets(9);
  const Parsed mixed = ParseEdges("0 1\r\n\r\n1 2\r\r\n2 3\r", true, sources, targets);
  CHECK(mixed.edges == 3);
  CHECK(mixed.error == LineError::kNone);
  for (const char* text : {"0 1\r1 2\r", "# c\r0 1\r", "0 1 x\r1 2 x\n", "\r0 1\n"}) {
    const Parsed parsed = ParseEdges(text, true, sources, targets);
    CHECK(parsed.edges == 0);
    CHECK(parsed.error == LineError::kCarriageReturn);
  }
}

TEST_CASE("blanks may come first, but no comma or semicolon, and no two of them in a row") {
  std::vector<int64_t> sources(9), targets(9);
  const Parsed parsed = ParseEdges(" 0 1\n\t2\t\t3\n 4 , 5\n6;7;;\n \t \n", true, sources, targets);
  CHECK(parsed.error == LineError::kNone);
  CHECK(parsed.edges == 4);
  CHECK(parsed.lines == 5);
  CHECK(sources[3] == 6);
  CHECK(targets[3] == 7);
  for (const char* text : {",0,1\n", " ;0 1\n", "0,,1\n", "0, ;1", ",\n"}) {
    CHECK(ParseEdges(text, true, sources, targets).error == LineError::kEmptyColumn);
  }
  CHECK(ParseEdges("0,\n", true, sources, targets).error == LineError::kTooFewColumns);
}

TEST_CASE("text in pieces parses as text at once, and noise never reads out of bounds") {
  std::minstd_rand random(8);
  const std::string alphabet = "0123456789 \t,;#%\n\r-x.";
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t i = random() % 60; i > 0; --i) text += alphabet[random() % alphabet.size()];
    std::vector<int64_t> sources(100), targets(100);
    const Parsed whole = ParseEdges(text, true, sources, targets);
    std::vector<int64_t> one_source(1), one_target(1), all;
    size_t at = 0, edges = 0;
    Parsed piece;
    do {
      const std::vector<char> copy(text.begin() + static_cast<long>(at), text.end());
      piece = ParseEdges({copy.data(), copy.size()}, true, one_source, one_target);
      if (piece.edges == 1) {
        CHECK(one_source[0] == sources[edges]);
        CHECK(one_target[0] == targets[edges]);
      }
      edges += piece.edges;
      at += piece.consumed;
    } while (piece.error == LineError::kNone && piece.consumed != 0);
    CHECK(edges == whole.edges);
    CHECK(at == whole.consumed);
    CHECK(piece.error == whole.error);
    const Parsed open = ParseEdges(text, false, sources, targets);
    CHECK(open.consumed <= whole.consumed + (whole.error == LineError::kNone ? 0 : text.size()));
  }
}

}  // namespace
}  // namespace outcrop::ingest
