// Packing: rows into chunks by pieces, however they are cut, and back into batches.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "cache/tiers.h"
#include "layout/pages.h"
#include "layout/row_set.h"
#include "layout/scatter.h"
#include "layout/segment.h"
#include "rows/copier.h"

namespace outcrop {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Writes pieces where they belong, some time after they were full.
class Writer {
 public:
  explicit Writer(layout::Scatter& scatter) : scatter_(scatter) {}

  void Take() {
    for (const layout::Piece& piece : scatter_.TakeFull()) flying_.push_back(piece);
  }
  void Land(size_t count, size_t piece_bytes) {
    for (size_t i = 0; i < count && !flying_.empty(); ++i) {
      const layout::Piece piece = flying_.front();
      flying_.erase(flying_.begin());
      Bytes& chunk = chunks[piece.chunk];
      chunk.resize(std::max(chunk.size(), piece.number * piece_bytes + piece.bytes));
      std::memcpy(chunk.data() + piece.number * piece_bytes, scatter_.slot(piece.slot).data(),
                  piece.bytes);
      scatter_.Release(piece.slot);
    }
  }
  void Add(const layout::Piece& piece) { flying_.push_back(piece); }
  size_t flying() const { return flying_.size(); }

  std::map<size_t, Bytes> chunks;

 private:
  layout::Scatter& scatter_;
  std::vector<layout::Piece> flying_;
};

TEST_CASE("rows of many chunks are scattered, whatever the sizes of rows and pieces") {
  constexpr size_t kChunks = 5, kRows = 200, kPartition = 30, kUnit = 8;
  for (const size_t row_bytes : {1, 7, 64, 100, 129}) {
    for (const size_t piece_bytes : {64, 128}) {
      const Bytes features = RandomBytes(kRows * row_bytes, 1);
      Bytes memory((kChunks + 1) * piece_bytes);
      layout::Scatter scatter(kChunks, row_bytes, piece_bytes, memory);
      Writer writer(scatter);
      std::mt19937 random(static_cast<uint32_t>(row_bytes));
      std::vector<Bytes> expected(kChunks);
      for (size_t first = 0; first < kRows; first += kPartition) {
        const size_t rows = std::min(kPartition, kRows - first);
        std::vector<layout::Run> runs;
        std::vector<int64_t> ids;
        for (size_t chunk = 0; chunk < kChunks; ++chunk) {
          const size_t before = ids.size();
          for (size_t row = first; row < first + rows; ++row) {
            if (random() % 3 == 0) continue;
            ids.push_back(static_cast<int64_t>(row));
            const auto begin = features.begin() + static_cast<ptrdiff_t>(row * row_bytes);
            expected[chunk].insert(expected[chunk].end(), begin,
                                   begin + static_cast<ptrdiff_t>(row_bytes));
          }
          runs.push_back({chunk, ids.size() - before});
        }
        const std::span<const std::byte> partition(features.data() + first * row_bytes,
                                                   rows * row_bytes);
        while (!scatter.Append(partition, static_cast<int64_t>(first), runs, ids)) {
          writer.Take();
          REQUIRE(writer.flying() > 0);  // else it would wait for ever
          writer.Land(1, piece_bytes);
        }
        writer.Take();
      }
      for (size_t chunk = 0; chunk < kChunks; ++chunk) {
        const layout::Piece piece = scatter.Finish(chunk, kUnit);
        CHECK(piece.bytes % kUnit == 0);
        if (piece.bytes > 0) writer.Add(piece);
        CHECK(scatter.Finish(chunk, kUnit).bytes == 0);
      }
      writer.Land(1000, piece_bytes);
      for (size_t chunk = 0; chunk < kChunks; ++chunk) {
        expected[chunk].resize((expected[chunk].size() + kUnit - 1) / kUnit * kUnit);
        CHECK(writer.chunks[chunk] == expected[chunk]);
      }
    }
  }
}

TEST_CASE("a chunk is resumed at the beginning of any of its pieces") {
  constexpr size_t kRowBytes = 7, kPieceBytes = 32, kRows = 20;
  const Bytes features = RandomBytes(kRows * kRowBytes, 2);
  for (size_t piece = 0; piece * kPieceBytes < features.size(); ++piece) {
    Bytes memory(20 * kPieceBytes);
    layout::Scatter scatter(2, kRowBytes, kPieceBytes, memory);
    Writer writer(scatter);
    const size_t first = piece * kPieceBytes / kRowBytes;
    scatter.Resume(1, piece, piece * kPieceBytes % kRowBytes);
    std::vector<int64_t> ids(kRows - first);
    std::iota(ids.begin(), ids.end(), static_cast<int64_t>(first));
    REQUIRE(scatter.Append(features, 0, std::vector<layout::Run>{{1, ids.size()}}, ids));
    writer.Take();
    writer.Add(scatter.Finish(1, 1));
    writer.Land(1000, kPieceBytes);
    Bytes expected = features;
    std::fill_n(expected.begin(), piece * kPieceBytes, std::byte{0});
    CHECK(writer.chunks[1] == expected);
  }
}

TEST_CASE("rows that come in blocks go to their places") {
  constexpr size_t kDim = 5, kRows = 700, kRowBytes = kDim * sizeof(float);
  std::vector<uint32_t> places(kRows);
  std::iota(places.begin(), places.end(), 3);
  std::shuffle(places.begin(), places.end(), std::mt19937(1));
  const Bytes stored = RandomBytes(kRows * kRowBytes + 100, 3);  // and padding
  rows::Copier copier({kRowBytes, kDim, rows::Encoding::kFloat32}, 2);
  for (const size_t block : {1, 19, 20, 21, 4096, 100000}) {
    std::vector<float> out((kRows + 3) * kDim);
    rows::RowStream stream(copier, places, out);
    for (size_t at = 0; at < stored.size(); at += block) {
      stream.Feed(std::span(stored).subspan(at, std::min(block, stored.size() - at)));
    }
    CHECK(stream.done());
    for (size_t i = 0; i < kRows; ++i) {
      REQUIRE(std::memcmp(out.data() + places[i] * kDim, stored.data() + i * kRowBytes,
                          kRowBytes) == 0);
    }
  }
}

TEST_CASE("rows of the cache go to their places, and rows are copied within a batch") {
  constexpr size_t kDim = 3;
  std::vector<float> cache(10 * kDim);
  std::iota(cache.begin(), cache.end(), 0.0F);
  rows::Copier copier({kDim * sizeof(float), kDim, rows::Encoding::kFloat32}, 1);
  std::vector<float> out(4 * kDim, -1.0F);
  const std::vector<uint32_t> slots{9, 0}, places{0, 2};
  copier.Gather(reinterpret_cast<const std::byte*>(cache.data()), std::span(slots),
                std::span(places), out);
  copier.Copy(std::vector<uint32_t>{0}, std::vector<uint32_t>{3}, out);
  CHECK(out == std::vector<float>{27, 28, 29, -1, -1, -1, 0, 1, 2, 27, 28, 29});
}

TEST_CASE("entries are sorted by node, and equal nodes keep their order") {
  std::mt19937_64 random(5);
  cache::EntrySorter sorter;
  for (const uint64_t most : {1ULL, 100ULL, 1ULL << 40}) {
    std::vector<int64_t> nodes(5000);
    for (int64_t& node : nodes) node = static_cast<int64_t>(random() % most);
    const auto sorted = sorter.Sort(nodes);
    REQUIRE(sorted.size() == nodes.size());
    for (size_t i = 0; i < sorted.size(); ++i) {
      REQUIRE(static_cast<int64_t>(sorted[i].node) == nodes[sorted[i].row]);
      if (i == 0) continue;
      REQUIRE(sorted[i - 1].node <= sorted[i].node);
      if (sorted[i - 1].node == sorted[i].node) REQUIRE(sorted[i - 1].row < sorted[i].row);
    }
  }
}

TEST_CASE("the hottest nodes are the same from every kind of table") {
  std::mt19937 random(6);
  cache::AccessCounts dense(1000, 1000), hashed(int64_t{1} << 40, 10);
  cache::AccessCounts touched(20'000'000, 1'000'000);  // a hash table would take 32 MB
  REQUIRE(touched.wants_marks());
  CHECK_FALSE(dense.wants_marks());
  CHECK_FALSE(hashed.wants_marks());
  CHECK(touched.Hottest(10).size() == 0);
  std::vector<std::vector<int64_t>> batches(30);
  for (auto& nodes : batches) {
    for (int i = 0; i < 200; ++i) nodes.push_back(static_cast<int64_t>(random() % 1000));
    touched.Mark(nodes);
  }
  for (const auto& nodes : batches) {
    for (auto* counts : {&dense, &hashed, &touched}) counts->Add(nodes);
  }
  CHECK_FALSE(touched.wants_marks());
  for (const size_t slots : {0, 1, 10, 500, 5000}) {
    const auto left = dense.Hottest(slots);
    CHECK(left.size() <= slots);
    CHECK(std::is_sorted(left.data(), left.data() + left.size()));
    for (const auto* counts : {&hashed, &touched}) {
      const auto right = counts->Hottest(slots);
      REQUIRE(left.size() == right.size());
      CHECK(std::equal(left.data(), left.data() + left.size(), right.data()));
    }
  }
}

TEST_CASE("rows of a set are counted and listed in any range") {
  layout::RowSet rows(200);
  rows.Add(std::vector<int64_t>{0, 63, 64, 127, 128, 199});
  CHECK(rows.Count(0, 200) == 6);
  CHECK(rows.Count(63, 65) == 2);
  CHECK(rows.Count(64, 64) == 0);
  CHECK(rows.Count(65, 127) == 0);
  std::vector<int64_t> found(3);
  rows.List(64, 199, found);
  CHECK(found == std::vector<int64_t>{64, 127, 128});
}

TEST_CASE("a segment has the rows of several batches, each once, and batches find them") {
  using layout::Order;
  for (const Order order : {Order::kId, Order::kSet, Order::kMinHash, Order::kPrinted}) {
    std::mt19937 random(7);
    layout::Segment segment(500, 100, order, 3);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<int64_t>> batches(9);
      std::map<int64_t, uint32_t> wanted;
      for (uint32_t t = 0; t < batches.size(); ++t) {
        for (int64_t node = 0; node < 500; ++node) {
          if (random() % 6 != 0) continue;
          batches[t].push_back(node);
          ++wanted[node];
        }
        segment.Add(t, batches[t]);
      }
      std::vector<uint64_t> having(4);
      segment.Count(having);
      CHECK(having[0] == 0);
      CHECK(having[1] + having[2] + having[3] == wanted.size());
      CHECK(having[3] == static_cast<size_t>(std::count_if(wanted.begin(), wanted.end(),
                                                           [](auto& w) { return w.second >= 3; })));
      const size_t rows = segment.Share(1);
      CHECK(rows == having[2] + having[3]);
      std::vector<int64_t> nodes(rows), at(rows);
      std::vector<uint32_t> places(rows);
      segment.Bucket(0, rows, nodes, places);
      CHECK(std::is_sorted(nodes.begin(), nodes.end()));
      for (size_t i = 0; i < rows; ++i) at[places[i]] = nodes[i];
      for (const auto& batch : batches) {
        segment.Split(batch);
        CHECK(segment.own().size() + segment.shared().size() == batch.size());
        CHECK(std::is_sorted(segment.positions().begin(), segment.positions().end()));
        for (const uint32_t i : segment.own()) CHECK(wanted[batch[i]] == 1);
        for (size_t i = 0; i < segment.shared().size(); ++i) {
          CHECK(at[segment.positions()[i]] == batch[segment.shared()[i]]);
        }
      }
      segment.Clear();
    }
  }
}

TEST_CASE("pairs of units say how many rows segments of any length have") {
  layout::ReusePairs pairs(10, 10, 3);
  pairs.Add(0, std::vector<int64_t>{1, 2, 3});
  pairs.Add(0, std::vector<int64_t>{3, 4});
  pairs.Add(1, std::vector<int64_t>{4, 5});
  pairs.Add(2, std::vector<int64_t>{1, 4, 9});
  const std::vector<uint64_t> expected{1, 1, 1, 0, 0, 1, 0, 0, 0};
  CHECK(std::equal(expected.begin(), expected.end(), pairs.pairs().begin()));
}

TEST_CASE("checksums of pages are XXH64, and add up in any order") {
  const Bytes zeros(disk::kPageBytes);
  CHECK(layout::PageChecksum(zeros, 0) == 0xac869b6f32d8bbdb);
  CHECK(layout::PageChecksum(zeros, 5) == 0x39258435aa12414);
  const Bytes pages = RandomBytes(3 * disk::kPageBytes, 1);
  std::vector<uint64_t> each(3);
  layout::ChecksumPages(pages, 4, each);
  const std::vector<int64_t> first{4}, count{3};
  CHECK(layout::SumOfPages(pages, first, count) == each[0] + each[1] + each[2]);
  const std::vector<int64_t> firsts{5, 4, 6}, ones{1, 1, 1};
  CHECK(layout::SumOfPages(pages, firsts, ones) != each[0] + each[1] + each[2]);
}

}  // namespace
}  // namespace outcrop
