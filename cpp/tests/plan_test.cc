// Plans: every wanted byte comes exactly once, requests keep to their rules.
#include "disk/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "disk/align.h"
#include "disk/memory.h"
#include "tests/scratch.h"

namespace outcrop::disk {
namespace {

using tests::RandomBytes;

std::vector<Piece> AllPieces(const ExtentList& extents, const PlanOptions& options) {
  std::vector<Piece> pieces;
  ReadPlanner planner(extents, options);
  while (!planner.AtEnd()) pieces.push_back(planner.Next());
  return pieces;
}

// Executes a read plan on a file held in memory.
void Execute(const std::vector<Piece>& pieces, const ExtentList& extents,
             const std::vector<std::byte>& file) {
  std::vector<std::byte> bounce;
  for (const Piece& piece : pieces) {
    REQUIRE(piece.offset + piece.needed <= file.size());
    if (piece.straight != nullptr) {
      std::memcpy(piece.straight, file.data() + piece.offset, piece.length);
      continue;
    }
    bounce.assign(piece.length, std::byte{0xee});
    std::memcpy(bounce.data(), file.data() + piece.offset, piece.needed);
    CopyOut(extents, piece, bounce.data());
  }
}

PlanOptions Options(uint32_t unit, uint64_t gap, uint32_t max_request, uint32_t max_bounce) {
  PlanOptions options;
  options.unit_bytes = unit;
  options.memory_align = unit;
  options.gap_bytes = gap;
  options.max_request_bytes = max_request;
  options.max_bounce_bytes = max_bounce;
  return options;
}

TEST_CASE("rows in one page become one request") {
  const std::vector<int64_t> ids{0, 3, 7};
  std::vector<std::byte> out(3 * 512);
  const auto extents = ExtentList::Rows(0, 512, ids, {}, out.data());
  const auto pieces = AllPieces(extents, Options(4096, 0, 1 << 20, 1 << 16));
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].offset == 0);
  CHECK(pieces[0].length == 4096);
}

TEST_CASE("without merging each row has a request, and the same row twice shares one") {
  const std::vector<int64_t> ids{0, 1, 1, 3, 6, 8, 15};  // the fifth crosses the end of a page
  std::vector<std::byte> out(7 * 600);
  const auto file = RandomBytes(3 * 4096);
  const auto extents = ExtentList::Rows(0, 600, ids, {}, out.data());
  auto options = Options(4096, 8192, 1 << 20, 1 << 16);
  options.merge = false;
  const auto pieces = AllPieces(extents, options);
  CHECK(pieces.size() == 6);
  Execute(pieces, extents, file);
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(std::memcmp(out.data() + 600 * i, file.data() + 600 * ids[i], 600) == 0);
  }
}

TEST_CASE("a gap up to the threshold is read over, a larger one is not") {
  const std::vector<int64_t> ids{0, 2, 5};
  std::vector<std::byte> out(3 * 4096);
  const auto extents = ExtentList::Rows(0, 4096, ids, {}, out.data());
  CHECK(AllPieces(extents, Options(4096, 0, 1 << 20, 1 << 16)).size() == 3);
  CHECK(AllPieces(extents, Options(4096, 4096, 1 << 20, 1 << 16)).size() == 2);
  CHECK(AllPieces(extents, Options(4096, 8192, 1 << 20, 1 << 16)).size() == 1);
}

TEST_CASE("a long aligned extent is read straight, in requests of the largest size") {
  AlignedMemory out(4 << 20);
  const std::vector<int64_t> offsets{4096}, lengths{4 << 20}, places{0};
  const auto extents = ExtentList::Ranges(offsets, lengths, places, out.data());
  const auto pieces = AllPieces(extents, Options(4096, 0, 1 << 20, 1 << 16));
  REQUIRE(pieces.size() == 4);
  for (const Piece& piece : pieces) {
    CHECK(piece.straight == out.data() + (piece.offset - 4096));
    CHECK(piece.length == 1 << 20);
  }
}

TEST_CASE("consecutive rows to consecutive places are one straight run") {
  AlignedMemory out(1 << 20);
  std::vector<int64_t> ids(2048);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) + 8;
  const auto extents = ExtentList::Rows(0, 512, ids, {}, out.data());
  const auto pieces = AllPieces(extents, Options(4096, 0, 1 << 20, 1 << 16));
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].straight == out.data());
}

TEST_CASE("the same long row wanted twice reaches both places") {
  const auto file = RandomBytes(1 << 20);
  AlignedMemory out(2 * (256 << 10));
  const std::vector<int64_t> ids{1, 1};
  const auto extents = ExtentList::Rows(0, 256 << 10, ids, {}, out.data());
  Execute(AllPieces(extents, Options(512, 0, 1 << 20, 1 << 16)), extents, file);
  for (int copy : {0, 1}) {
    CHECK(std::memcmp(out.data() + copy * (256 << 10), file.data() + (256 << 10), 256 << 10) == 0);
  }
}

TEST_CASE("random extents, overlapping or not, in any order, arrive whole") {
  std::minstd_rand random(7);
  const auto file = RandomBytes(600000);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 400; ++round) {
    const size_t count = static_cast<size_t>(below(60));
    const uint64_t longest = round % 4 == 0 ? 300000 : 3000;
    std::vector<int64_t> offsets, lengths, places;
    int64_t room = 0;
    for (size_t i = 0; i < count; ++i) {
      const int64_t length = below(longest);
      offsets.push_back(below(file.size() - static_cast<uint64_t>(length)));
      lengths.push_back(length);
      room = round % 3 == 0 ? static_cast<int64_t>(RoundUp(static_cast<uint64_t>(room), 4096))
                            : room + below(3);
      places.push_back(room);
      room += length;
    }
    AlignedMemory out(static_cast<uint64_t>(room) + 1);
    const auto extents = ExtentList::Ranges(offsets, lengths, places, out.data());
    const uint32_t unit = std::vector<uint32_t>{1, 512, 4096}[static_cast<size_t>(round) % 3];
    auto options = Options(unit, static_cast<uint64_t>(below(20000)), 128 << 10, 32 << 10);
    options.merge = round % 5 != 0;
    const auto pieces = AllPieces(extents, options);
    for (const Piece& piece : pieces) {
      CHECK(piece.offset % unit == 0);
      CHECK(piece.length % unit == 0);
      CHECK(piece.length <= (piece.straight != nullptr ? 128U << 10 : 32U << 10));
      if (piece.straight != nullptr) CHECK(IsAligned(piece.straight, unit));
    }
    Execute(pieces, extents, file);
    for (size_t i = 0; i < count; ++i) {
      CHECK(std::memcmp(out.data() + places[i], file.data() + offsets[i],
                        static_cast<size_t>(lengths[i])) == 0);
    }
  }
}

TEST_CASE("writes: whole pages around the cache, edges through it, each byte once") {
  std::minstd_rand random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> offsets, lengths, places;
    int64_t at = 0, room = 0;
    while (offsets.size() < 40 && at < 500000) {
      at += random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 9000);
      const auto length = static_cast<int64_t>(random() % (round % 5 == 0 ? 200000 : 6000));
      offsets.push_back(at);
      lengths.push_back(length);
      if (round % 2 == 0) room = static_cast<int64_t>(RoundUp(static_cast<uint64_t>(room), 4096));
      places.push_back(room);
      at += length;
      room += length;
    }
    AlignedMemory source(static_cast<uint64_t>(room) + 1);
    const auto bytes = RandomBytes(static_cast<size_t>(room), static_cast<uint32_t>(round + 1));
    std::memcpy(source.data(), bytes.data(), bytes.size());
    const auto extents = ExtentList::Ranges(offsets, lengths, places, source.data());
    std::vector<std::byte> file(static_cast<size_t>(at)), bounce;
    std::vector<int> written(file.size(), 0);
    const uint32_t unit = round % 3 == 0 ? 1 : 4096;
    WritePlanner planner(extents, Options(unit, 0, 128 << 10, 32 << 10));
    while (!planner.AtEnd()) {
      const Piece piece = planner.Next();
      if (!piece.edge) CHECK((piece.offset % unit == 0 && piece.length % unit == 0));
      if (piece.edge) CHECK(piece.length < 4096);
      bounce.assign(piece.length, std::byte{0});
      if (piece.straight != nullptr) {
        std::memcpy(bounce.data(), piece.straight, piece.length);
      } else {
        CopyIn(extents, piece, bounce.data());
      }
      REQUIRE(piece.offset + piece.length <= file.size());
      std::memcpy(file.data() + piece.offset, bounce.data(), piece.length);
      for (uint32_t i = 0; i < piece.length; ++i) ++written[piece.offset + i];
    }
    for (size_t i = 0; i < offsets.size(); ++i) {
      CHECK(std::memcmp(file.data() + offsets[i], source.data() + places[i],
                        static_cast<size_t>(lengths[i])) == 0);
      const auto begin = written.begin() + offsets[i];
      CHECK(std::count(begin, begin + lengths[i], 1) == lengths[i]);
      std::fill(begin, begin + lengths[i], 0);
    }
    CHECK(std::count(written.begin(), written.end(), 0) == static_cast<long>(written.size()));
  }
}

TEST_CASE("arena: no page is handed out twice, freed pages come back") {
  Arena arena(64 * 4096);
  std::minstd_rand random(3);
  std::vector<std::pair<std::byte*, uint64_t>> held;
  std::vector<int> owner(64, 0);
  int refused = 0;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0 && !held.empty()) {
      const size_t pick = random() % held.size();
      const auto [memory, bytes] = held[pick];
      const auto page = static_cast<size_t>(memory - arena.memory().data()) / 4096;
      for (size_t p = page; p < page + (bytes + 4095) / 4096; ++p) --owner[p];
      arena.Free(memory, bytes);
      held.erase(held.begin() + static_cast<long>(pick));
      continue;
    }
    const uint64_t bytes = 1 + random() % (16 * 4096);
    std::byte* memory = arena.Allocate(bytes);
    if (memory == nullptr) {
      ++refused;
      continue;
    }
    const auto page = static_cast<size_t>(memory - arena.memory().data()) / 4096;
    for (size_t p = page; p < page + (bytes + 4095) / 4096; ++p) {
      REQUIRE(p < owner.size());
      REQUIRE(++owner[p] == 1);
    }
    held.emplace_back(memory, bytes);
  }
  CHECK(refused > 0);
  for (const auto& [memory, bytes] : held) arena.Free(memory, bytes);
  CHECK(arena.Allocate(64 * 4096) != nullptr);
}

}  // namespace
}  // namespace outcrop::disk
