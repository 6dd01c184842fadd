// The engine, with each channel, on real files: right bytes, clear errors, no hang.
#include "disk/engine.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "disk/error.h"
#include "disk/memory.h"
#include "disk/uring.h"
#include "tests/scratch.h"

namespace outcrop::disk {
namespace {

using tests::RandomBytes;
using tests::ScratchDir;

std::vector<EngineOptions> Engines() {
  std::vector<EngineOptions> all;
  EngineOptions pool;
  pool.kind = EngineKind::kPool;
  pool.workers = 4;
  all.push_back(pool);
  if (UringRefusal().empty()) {
    EngineOptions uring;
    uring.kind = EngineKind::kUring;
    uring.workers = 2;
    uring.queue_depth = 16;
    all.push_back(uring);
  } else {
    MESSAGE("io_uring not tested: " << UringRefusal());
  }
  return all;
}

// A file of rows, and what reading some of them should give.
struct RowFile {
  RowFile(uint64_t rows, uint64_t row_bytes, uint64_t base, Access access)
      : row_bytes(row_bytes), base(base), bytes(RandomBytes(base + rows * row_bytes)) {
    tests::WriteFile(dir.File("rows"), bytes);
    file = File::OpenForRead(dir.File("rows"), access);
  }

  std::vector<std::byte> Expected(const std::vector<int64_t>& ids) const {
    std::vector<std::byte> out(ids.size() * row_bytes);
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint64_t at = base + static_cast<uint64_t>(ids[i]) * row_bytes;
      std::memcpy(out.data() + i * row_bytes, bytes.data() + at, row_bytes);
    }
    return out;
  }

  ScratchDir dir;
  uint64_t row_bytes, base;
  std::vector<std::byte> bytes;
  std::shared_ptr<File> file;
};

std::vector<int64_t> SomeIds(size_t count, uint64_t rows, uint32_t seed = 5) {
  std::minstd_rand random(seed);
  std::vector<int64_t> ids(count);
  for (auto& id : ids) id = static_cast<int64_t>(random() % rows);
  std::sort(ids.begin(), ids.end());
  return ids;
}

void CheckRows(Engine& engine, const RowFile& rows, const std::vector<int64_t>& ids) {
  std::vector<std::byte> out(ids.size() * rows.row_bytes);
  engine.Read(rows.file, ExtentList::Rows(rows.base, rows.row_bytes, ids, {}, out.data()))->Wait();
  CHECK(out == rows.Expected(ids));
}

TEST_CASE("rows of any size at any offset, both engines, direct and buffered") {
  for (const auto& options : Engines()) {
    Engine engine(options);
    for (uint64_t row_bytes : {1, 7, 400, 512, 508, 516, 4096, 4100, 300000, 3 << 20}) {
      for (Access access : {Access::kAuto, Access::kBuffered}) {
        const uint64_t count = std::max<uint64_t>(3, 200000 / row_bytes);
        RowFile rows(count, row_bytes, row_bytes % 3 == 0 ? 4096 : 129, access);
        CheckRows(engine, rows, SomeIds(100, count));
        CheckRows(engine, rows, {0});
        CheckRows(engine, rows, {static_cast<int64_t>(count - 1)});
        CheckRows(engine, rows, {});
      }
    }
  }
}

TEST_CASE("the last row of a file that ends in the middle of a sector is read") {
  for (const auto& options : Engines()) {
    Engine engine(options);
    RowFile rows(13, 77, 3, Access::kAuto);
    CheckRows(engine, rows, {0, 12, 12});
  }
}

TEST_CASE("short reads are completed, interrupted and refused ones repeated") {
  for (auto options : Engines()) {
    RowFile rows(20000, 400, 128, Access::kAuto);
    FaultOptions faults;
    faults.short_every = 2;
    faults.reorder = true;
    options.faults = faults;
    Engine shortened(options);
    CheckRows(shortened, rows, SomeIds(5000, 20000));
    std::vector<int64_t> all(20000);
    std::iota(all.begin(), all.end(), 0);
    CheckRows(shortened, rows, all);
    CHECK(shortened.counters().retries > 0);
    for (int error : {EINTR, EAGAIN}) {
      faults.short_every = 0;
      faults.fail_read_at = 3;
      faults.fail_count = 5;
      faults.error = error;
      options.faults = faults;
      Engine interrupted(options);
      CheckRows(interrupted, rows, SomeIds(5000, 20000));
      CHECK(interrupted.counters().retries == 5);
    }
  }
}

TEST_CASE("a throttled engine gives the same bytes, never faster than its rates") {
  for (auto options : Engines()) {
    for (const bool by_requests : {false, true}) {
      RowFile rows(256, 4096, 0, Access::kAuto);
      options.throttle =
          std::make_shared<Throttle>(by_requests ? 0 : 10'000'000, by_requests ? 1000 : 0);
      Engine engine(options);
      std::vector<int64_t> some;  // every other row: nothing is merged
      for (int64_t id = 0; id < 256; id += 2) some.push_back(id);
      const auto start = std::chrono::steady_clock::now();
      CheckRows(engine, rows, some);
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      const Counters counters = engine.counters();
      REQUIRE(counters.read_requests == some.size());
      CHECK(passed.count() >= (by_requests ? static_cast<double>(counters.read_requests) / 1000
                                           : static_cast<double>(counters.bytes_read) / 1e7));
    }
  }
}

TEST_CASE("two engines with one throttle share its rate") {
  for (auto options : Engines()) {
    RowFile rows(128, 4096, 0, Access::kAuto);
    options.throttle = std::make_shared<Throttle>(10'000'000, 0);
    Engine one(options), other(options);
    std::vector<int64_t> all(128);
    std::iota(all.begin(), all.end(), 0);
    const auto start = std::chrono::steady_clock::now();
    std::thread beside([&] { CheckRows(other, rows, all); });
    CheckRows(one, rows, all);
    beside.join();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    CHECK(passed.count() >= 2 * 128 * 4096 / 1e7);
  }
}

TEST_CASE("a failing read names file, offset, length and errno, and the engine lives on") {
  for (auto options : Engines()) {
    RowFile rows(20000, 400, 0, Access::kAuto);
    options.faults = FaultOptions{};
    options.faults->fail_read_at = 7;
    Engine engine(options);
    const auto ids = SomeIds(3000, 20000);
    std::vector<std::byte> out(ids.size() * 400);
    auto transfer = engine.Read(rows.file, ExtentList::Rows(0, 400, ids, {}, out.data()));
    try {
      transfer->Wait();
      FAIL("no error");
    } catch (const IoError& error) {
      CHECK(error.code() == EIO);
      CHECK(error.stage() == Stage::kRead);
      CHECK(error.path() == rows.dir.File("rows"));
      CHECK(error.length() > 0);
      CHECK(std::string(error.what()).find("Input/output error") != std::string::npos);
    }
    CHECK_THROWS_AS(transfer->Wait(), IoError);
    CheckRows(engine, rows, ids);
  }
}

TEST_CASE("a device that only ever says EAGAIN ends in an error, not in a hang") {
  for (auto options : Engines()) {
    RowFile rows(100, 400, 0, Access::kAuto);
    options.faults = FaultOptions{};
    options.faults->fail_read_at = 1;
    options.faults->fail_count = uint64_t{1} << 40;
    options.faults->error = EAGAIN;
    Engine engine(options);
    std::vector<std::byte> out(400);
    const std::vector<int64_t> ids{5};
    auto transfer = engine.Read(rows.file, ExtentList::Rows(0, 400, ids, {}, out.data()));
    CHECK_THROWS_AS(transfer->Wait(), IoError);
  }
}

TEST_CASE("reading past the end is an error, before and after the file was opened") {
  for (const auto& options : Engines()) {
    Engine engine(options);
    for (Access access : {Access::kAuto, Access::kBuffered}) {
      RowFile rows(100, 4096, 0, access);
      std::vector<std::byte> out(4096);
      const std::vector<int64_t> beyond{100}, last{99};
      CHECK_THROWS_AS(engine.Read(rows.file, ExtentList::Rows(0, 4096, beyond, {}, out.data())),
                      IoError);
      auto transfer = engine.Read(rows.file, ExtentList::Rows(0, 4096, last, {}, out.data()));
      transfer->Wait();
      // Truncated behind our back: the size is looked up for each transfer, so only a read that is
      // already on its way can meet it. The planner alone stands in for that moment.
      REQUIRE(truncate(rows.dir.File("rows").c_str(), 99 * 4096 + 100) == 0);
      CHECK_THROWS_AS(engine.Read(rows.file, ExtentList::Rows(0, 4096, last, {}, out.data())),
                      IoError);
    }
  }
}

TEST_CASE("a read past the end names the extent that reaches furthest") {
  Engine engine(Engines()[0]);
  RowFile rows(1, 100, 0, Access::kAuto);
  std::vector<std::byte> out(210);
  const std::vector<int64_t> offsets{0, 50}, lengths{200, 10}, places{0, 200};
  try {
    engine.Read(rows.file, ExtentList::Ranges(offsets, lengths, places, out.data()));
    FAIL("no error");
  } catch (const IoError& error) {
    CHECK(error.offset() == 0);
    CHECK(error.length() == 200);
  }
}

TEST_CASE("a file truncated while reads are under way is an error, not zeros and not a hang") {
  for (auto options : Engines()) {
    options.faults = FaultOptions{};
    options.faults->delay_us = 2000;
    options.workers = 1;
    Engine engine(options);
    RowFile rows(4000, 4096, 0, Access::kAuto);
    std::vector<int64_t> ids(2000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(2 * i);
    std::vector<std::byte> out(ids.size() * 4096);
    auto transfer = engine.Read(rows.file, ExtentList::Rows(0, 4096, ids, {}, out.data()));
    REQUIRE(truncate(rows.dir.File("rows").c_str(), 1000) == 0);
    try {
      transfer->Wait();
      FAIL("no error");
    } catch (const IoError& error) {
      CHECK(error.code() == ENODATA);
    }
  }
}

TEST_CASE("writes land, aligned or not, and are read back") {
  for (auto options : Engines()) {
    for (uint64_t short_every : {0, 3}) {
      options.faults = FaultOptions{};
      options.faults->short_every = short_every;
      Engine engine(options);
      for (Access access : {Access::kAuto, Access::kBuffered}) {
        ScratchDir dir;
        const auto bytes = RandomBytes(700001);
        auto file = File::Create(dir.File("out"), bytes.size(), access);
        std::vector<int64_t> offsets, lengths, places;
        std::minstd_rand random(4);
        for (size_t at = 0; at < bytes.size();) {
          const size_t length = std::min<size_t>(1 + random() % 90000, bytes.size() - at);
          offsets.push_back(static_cast<int64_t>(at));
          places.push_back(static_cast<int64_t>(at));
          lengths.push_back(static_cast<int64_t>(length));
          at += length;
        }
        auto* memory = const_cast<std::byte*>(bytes.data());
        engine.Write(file, ExtentList::Ranges(offsets, lengths, places, memory))->Wait();
        file->Sync();
        CHECK(tests::ReadFile(dir.File("out")) == bytes);
        CHECK(engine.counters().bytes_written >= bytes.size());
      }
    }
  }
}

TEST_CASE("a failing write is reported whole") {
  for (auto options : Engines()) {
    options.faults = FaultOptions{};
    options.faults->fail_write_at = 2;
    options.faults->error = ENOSPC;
    Engine engine(options);
    ScratchDir dir;
    auto bytes = RandomBytes(4 << 20);
    auto file = File::Create(dir.File("out"), bytes.size(), Access::kAuto);
    const std::vector<int64_t> offsets{0}, lengths{4 << 20}, places{0};
    auto transfer = engine.Write(file, ExtentList::Ranges(offsets, lengths, places, bytes.data()));
    try {
      transfer->Wait();
      FAIL("no error");
    } catch (const IoError& error) {
      CHECK(error.code() == ENOSPC);
      CHECK(error.stage() == Stage::kWrite);
    }
  }
}

TEST_CASE("more space than the disk has is refused at creation, and nothing is left") {
  ScratchDir dir;
  try {
    File::Create(dir.File("huge"), uint64_t{1} << 50, Access::kAuto);
    FAIL("no error");
  } catch (const IoError& error) {
    CHECK((error.code() == ENOSPC || error.code() == EFBIG));
  }
  CHECK(access(dir.File("huge").c_str(), F_OK) != 0);
}

TEST_CASE("running out of descriptors is an error, not a file system that refuses O_DIRECT") {
  RowFile rows(10, 400, 0, Access::kAuto);
  if (!rows.file->direct()) return;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = dup(0);
  close(next);
  const rlimit one_more{static_cast<rlim_t>(next) + 1, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &one_more) == 0);
  int code = 0;
  try {
    File::OpenForRead(rows.dir.File("rows"), Access::kAuto);
  } catch (const IoError& error) {
    code = error.code();
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(code == EMFILE);
}

TEST_CASE("overlapping writes and writes to a file open for reading are refused") {
  Engine engine(Engines()[0]);
  ScratchDir dir;
  auto bytes = RandomBytes(100);
  auto file = File::Create(dir.File("out"), 100, Access::kAuto);
  const std::vector<int64_t> offsets{0, 9}, lengths{10, 10}, places{0, 10};
  const auto extents = ExtentList::Ranges(offsets, lengths, places, bytes.data());
  CHECK_THROWS_AS(engine.Write(file, extents), std::invalid_argument);
  auto reader = File::OpenForRead(dir.File("out"), Access::kAuto);
  CHECK_THROWS_AS(engine.Write(reader, extents), std::invalid_argument);
}

TEST_CASE("options under which a plan would not advance are refused") {
  EngineOptions options;
  options.unit_bytes = 1 << 20;
  options.bounce_bytes = 4 << 20;
  options.max_request_bytes = 64 << 10;
  CHECK_THROWS_AS(Engine{options}, std::invalid_argument);
  options.max_request_bytes = (1 << 20) + 4096;
  CHECK_THROWS_AS(Engine{options}, std::invalid_argument);
}

TEST_CASE("closing with reads in flight ends every wait") {
  for (auto options : Engines()) {
    options.faults = FaultOptions{};
    options.faults->delay_us = 3000;
    RowFile rows(20000, 4096, 0, Access::kAuto);
    std::vector<int64_t> ids(10000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(2 * i);
    std::vector<std::byte> out(ids.size() * 4096);
    Engine engine(options);
    auto transfer = engine.Read(rows.file, ExtentList::Rows(0, 4096, ids, {}, out.data()));
    std::atomic<bool> cancelled{false};
    std::thread waiter([&] {
      try {
        transfer->Wait();
      } catch (const Cancelled&) {
        cancelled = true;
      }
    });
    engine.Close();
    waiter.join();
    CHECK(cancelled);
    CHECK_THROWS_AS(engine.Read(rows.file, ExtentList::Rows(0, 4096, ids, {}, out.data())),
                    Cancelled);
    engine.Close();  // twice is once
  }
}

TEST_CASE("many threads share an engine; small reads are not stuck behind a large one") {
  for (auto options : Engines()) {
    options.faults = FaultOptions{};
    options.faults->reorder = true;
    options.faults->short_every = 5;
    Engine engine(options);
    RowFile rows(20000, 512, 4096, Access::kAuto);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 6; ++t) {
      threads.emplace_back([&, t] {
        for (uint32_t round = 0; round < 5; ++round) {
          const auto ids = SomeIds(t == 0 ? 20000 : 50, 20000, 1 + t * 31 + round);
          std::vector<std::byte> out(ids.size() * 512);
          engine.Read(rows.file, ExtentList::Rows(4096, 512, ids, {}, out.data()))->Wait();
          if (out != rows.Expected(ids)) std::abort();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST_CASE("a descriptor's number that is used again is not mistaken for the closed file") {
  for (const auto& options : Engines()) {
    Engine engine(options);
    ScratchDir dir;
    tests::WriteFile(dir.File("long"), RandomBytes(64 << 20, 3));
    auto long_file = File::OpenForRead(dir.File("long"), Access::kAuto);
    AlignedMemory sink(64 << 20);
    const std::vector<int64_t> offsets{0}, lengths{64 << 20}, places{0};
    for (uint32_t round = 0; round < 10; ++round) {
      // The long read keeps workers busy, so that no worker idles between the short ones.
      auto busy = engine.Read(long_file, ExtentList::Ranges(offsets, lengths, places, sink.data()));
      for (uint32_t i = 0; i < 5; ++i) {
        const auto bytes = RandomBytes(8192, 100 + round * 5 + i);
        tests::WriteFile(dir.File("short"), bytes);
        auto file = File::OpenForRead(dir.File("short"), Access::kAuto);
        std::vector<std::byte> out(8192);
        const std::vector<int64_t> zero{0}, all{8192};
        engine.Read(file, ExtentList::Ranges(zero, all, zero, out.data()))->Wait();
        CHECK(out == bytes);
      }
      busy->Wait();
    }
  }
}

TEST_CASE("more files at once than a ring has slots for") {
  for (const auto& options : Engines()) {
    Engine engine(options);
    std::vector<std::unique_ptr<RowFile>> files;
    std::vector<std::vector<std::byte>> outs(40);
    std::vector<std::shared_ptr<Transfer>> transfers;
    const std::vector<int64_t> ids{0, 7, 9};
    for (auto& out : outs) {
      files.push_back(std::make_unique<RowFile>(10, 400, 0, Access::kAuto));
      out.resize(ids.size() * 400);
      transfers.push_back(
          engine.Read(files.back()->file, ExtentList::Rows(0, 400, ids, {}, out.data())));
    }
    for (size_t i = 0; i < files.size(); ++i) {
      transfers[i]->Wait();
      CHECK(outs[i] == files[i]->Expected(ids));
    }
  }
}

TEST_CASE("requests are counted by size") {
  LiveCounters live;
  const std::pair<uint64_t, size_t> expected[] = {{0, 0},
                                                  {1, 0},
                                                  {4096, 0},
                                                  {4097, 1},
                                                  {8192, 1},
                                                  {8193, 2},
                                                  {1 << 20, 8},
                                                  {(1 << 20) + 1, 9},
                                                  {4 << 20, 10},
                                                  {(4 << 20) + 1, 11},
                                                  {uint64_t{1} << 40, 11}};
  for (const auto& [bytes, bucket] : expected) {
    for (bool read : {true, false}) {
      const Counters before = live.Snapshot();
      live.CountSize(read, bytes);
      const Counters after = live.Snapshot();
      CHECK(after.read_sizes[bucket] - before.read_sizes[bucket] == (read ? 1 : 0));
      CHECK(after.write_sizes[bucket] - before.write_sizes[bucket] == (read ? 0 : 1));
    }
  }
}

TEST_CASE("counters tell what was asked and what was read") {
  for (const auto& options : Engines()) {
    Engine engine(options);
    RowFile rows(1000, 512, 0, Access::kAuto);
    CheckRows(engine, rows, {0, 100, 200});
    const Counters counters = engine.counters();
    CHECK(counters.bytes_wanted == 3 * 512);
    CHECK(counters.bytes_read >= counters.bytes_wanted);
    CHECK(counters.read_requests == 3);
    CHECK(std::accumulate(counters.latency.begin(), counters.latency.end(), uint64_t{0}) == 3);
    CHECK(counters.read_sizes[0] == 3);
  }
}

TEST_CASE("an ordinary user with little lockable memory gets io_uring with plain memory") {
  if (!UringRefusal().empty() || geteuid() != 0) {
    MESSAGE("skipped: needs io_uring, and root to become someone else");
    return;
  }
  RowFile rows(1000, 400, 0, Access::kAuto);
  const pid_t child = fork();
  if (child == 0) {
    // Enough for the ring itself, which newer kernels count too, but not for the arena.
    const rlimit little{64 << 10, 64 << 10};
    if (setrlimit(RLIMIT_MEMLOCK, &little) != 0 || setgid(65534) != 0 || setuid(65534) != 0)
      _exit(2);
    try {
      EngineOptions options;
      options.kind = EngineKind::kUring;
      options.queue_depth = 32;
      Engine engine(options);
      if (RegisteredBytes() != 0) _exit(3);
      const auto ids = SomeIds(500, 1000);
      std::vector<std::byte> out(ids.size() * 400);
      engine.Read(rows.file, ExtentList::Rows(0, 400, ids, {}, out.data()))->Wait();
      _exit(out == rows.Expected(ids) ? 0 : 4);
    } catch (...) {
      _exit(5);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("threads that cannot be made are an error, and those already made end") {
  if (geteuid() != 0) {
    MESSAGE("skipped: needs root, to become someone who may have few threads");
    return;
  }
  const pid_t child = fork();
  if (child == 0) {
    const rlimit few{4, 4};
    if (setgid(65534) != 0 || setuid(65534) != 0 || setrlimit(RLIMIT_NPROC, &few) != 0) _exit(2);
    try {
      EngineOptions options;
      options.workers = 64;
      Engine engine(options);
      _exit(3);
    } catch (const IoError& error) {
      _exit(error.stage() == Stage::kOpen && error.code() == EAGAIN ? 0 : 4);
    } catch (...) {
      _exit(5);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("at most 2 MiB are registered, and given back with the engine") {
  if (!UringRefusal().empty()) return;
  EngineOptions options;
  options.kind = EngineKind::kUring;
  options.bounce_bytes = 1 << 20;
  options.workers = 5;
  {
    Engine engine(options);
    CHECK(RegisteredBytes() <= kRegisteredBytes);
    RowFile rows(1000, 400, 0, Access::kAuto);
    CheckRows(engine, rows, SomeIds(500, 1000));
  }
  CHECK(RegisteredBytes() == 0);
}

TEST_CASE("an engine refuses work in a forked child instead of hanging") {
  RowFile rows(10, 400, 0, Access::kAuto);
  auto engine = std::make_unique<Engine>(Engines()[0]);
  const pid_t child = fork();
  if (child == 0) {
    const std::vector<int64_t> ids{1};
    std::vector<std::byte> out(400);
    try {
      engine->Read(rows.file, ExtentList::Rows(0, 400, ids, {}, out.data()));
    } catch (const threads::Forked&) {
      engine.reset();
      _exit(0);
    }
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

}  // namespace
}  // namespace outcrop::disk
