#include "disk/worker.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "disk/align.h"
#include "disk/error.h"
#include "disk/uring.h"

namespace outcrop::disk {
namespace {

// Pieces taken from a transfer before the next transfer has its turn: enough to amortise the
// lock, few enough that a small read does not wait behind a large one.
constexpr size_t kTurn = 32;

// A request that is refused for now, or moves nothing, is tried this often; from the tenth time on
// with a pause of a millisecond. About a second in all.
constexpr uint32_t kMaxRetries = 1000;
constexpr uint32_t kPatientRetries = 10;

std::unique_ptr<Channel> MakeChannel(const EngineOptions& options, const Arena& arena,
                                     const std::shared_ptr<FaultState>& faults) {
  auto channel = options.kind == EngineKind::kUring ? MakeUringChannel(options.queue_depth, arena)
                                                    : MakeSyncChannel();
  if (options.throttle) channel = MakeThrottledChannel(std::move(channel), options.throttle);
  return faults ? MakeFaultyChannel(std::move(channel), faults) : std::move(channel);
}

bool EndsBefore(const File& file, uint64_t offset) {
  try {
    return file.size() < offset;
  } catch (const IoError&) {
    return false;  // the retry will tell what is wrong
  }
}

Stage StageOf(Op op) { return op == Op::kRead ? Stage::kRead : Stage::kWrite; }

}  // namespace

Worker::Worker(Engine* engine)
    : engine_(engine),
      arena_(engine->options_.bounce_bytes),
      channel_(MakeChannel(engine->options_, arena_, engine->faults_)),
      flights_(channel_->capacity()),
      completions_(channel_->capacity()),
      taken_(std::min<size_t>(kTurn, channel_->capacity())) {
  for (uint32_t tag = channel_->capacity(); tag-- > 0;) free_tags_.push_back(tag);
}

void Worker::Run() {
  for (;;) {
    Fill();
    if (idle()) return;  // Fill waited for work, and found the engine closing
    const size_t count = channel_->Wait(completions_);
    const auto now = Clock::now();
    if (const uint64_t closed = File::closed_count(); closed != files_closed_) {
      files_closed_ = closed;
      channel_->ReleaseFiles();
    }
    for (size_t i = 0; i < count; ++i) Land(completions_[i], now);
  }
}

// Sends pieces until the channel is full, memory is short, or there is nothing to send. With
// nothing in flight it waits for work.
void Worker::Fill() {
  if (idle()) channel_->ReleaseFiles();
  while (!free_tags_.empty()) {
    if (taken_next_ == taken_count_) {
      taken_next_ = 0;
      taken_from_ = engine_->TakeWork(taken_, &taken_count_, /*block=*/idle());
      if (!taken_from_) {
        taken_count_ = 0;
        return;
      }
    }
    while (taken_next_ < taken_count_ && !free_tags_.empty()) {
      if (!Launch(taken_from_, taken_[taken_next_])) return;
      ++taken_next_;
    }
    if (taken_next_ == taken_count_) taken_from_.reset();
  }
}

// False where there is no bounce memory for the piece now.
bool Worker::Launch(std::shared_ptr<Transfer> transfer, const Piece& piece) {
  std::byte* bounce = nullptr;
  if (piece.straight == nullptr) {
    bounce = arena_.Allocate(piece.length);
    if (bounce == nullptr) return false;
    if (transfer->op() == Op::kWrite) CopyIn(transfer->extents(), piece, bounce);
  }
  const uint32_t tag = free_tags_.back();
  free_tags_.pop_back();
  flights_[tag] = {std::move(transfer), piece, bounce, 0, 0, {}};
  Send(tag);
  return true;
}

void Worker::Send(uint32_t tag) {
  Flight& flight = flights_[tag];
  const Piece& piece = flight.piece;
  Request request;
  request.file = &flight.transfer->file();
  request.memory = (flight.bounce != nullptr ? flight.bounce : piece.straight) + flight.moved;
  request.offset = piece.offset + flight.moved;
  request.length = piece.length - flight.moved;
  request.tag = tag;
  request.op = flight.transfer->op();
  request.through_cache = piece.edge;
  request.in_arena = flight.bounce != nullptr;
  flight.sent = Clock::now();
  channel_->Push(request);
}

void Worker::Land(const Completion& completion, Clock::time_point now) {
  Flight& flight = flights_[completion.tag];
  const Piece& piece = flight.piece;
  const uint32_t bytes = completion.result > 0 ? static_cast<uint32_t>(completion.result) : 0;
  Count(flight, bytes, now);
  if (completion.result <= 0 || flight.moved + bytes < piece.needed) {
    return Continue(completion.tag, completion.result);
  }
  if (flight.bounce != nullptr && flight.transfer->op() == Op::kRead) {
    CopyOut(flight.transfer->extents(), piece, flight.bounce);
  }
  const auto transfer = flight.transfer;
  Release(completion.tag);
  transfer->Finish();
}

// A request that did not bring all that its piece needs: sends the rest again, or gives up.
void Worker::Continue(uint32_t tag, int32_t result) {
  Flight& flight = flights_[tag];
  const Piece& piece = flight.piece;
  const File& file = flight.transfer->file();
  const Op op = flight.transfer->op();
  int code = 0;
  std::string detail;
  if (result < 0 && result != -EINTR && result != -EAGAIN) {
    code = -result;
  } else if (op == Op::kRead && result >= 0 && EndsBefore(file, piece.offset + piece.needed)) {
    code = ENODATA;
    detail = "the file ends before that: it was truncated while open";
  } else {
    // Direct requests go on from a multiple of the alignment.
    const uint32_t unit = piece.edge ? 1 : file.offset_align();
    const uint32_t moved = static_cast<uint32_t>(
        RoundDown(flight.moved + static_cast<uint32_t>(std::max(result, 0)), unit));
    flight.retries = moved > flight.moved ? 0 : flight.retries + 1;
    flight.moved = moved;
    if (flight.retries > kMaxRetries) {
      code = result < 0 ? -result : EIO;
      detail = "gave up after " + std::to_string(kMaxRetries) + " tries without progress";
    }
  }
  if (code == 0) {
    if (flight.retries > kPatientRetries) usleep(1000);
    engine_->counters_->retries.fetch_add(1, std::memory_order_relaxed);
    return Send(tag);
  }
  const auto transfer = flight.transfer;
  auto error = std::make_exception_ptr(
      IoError(StageOf(op), code, file.path(), piece.offset, piece.length, detail));
  Release(tag);
  transfer->Fail(std::move(error));
}

void Worker::Count(const Flight& flight, uint32_t bytes, Clock::time_point now) {
  LiveCounters& counters = *engine_->counters_;
  const bool read = flight.transfer->op() == Op::kRead;
  (read ? counters.read_requests : counters.write_requests).fetch_add(1, std::memory_order_relaxed);
  (read ? counters.bytes_read : counters.bytes_written).fetch_add(bytes, std::memory_order_relaxed);
  counters.CountSize(read, bytes);
  counters.CountLatency(static_cast<uint64_t>(std::chrono::nanoseconds(now - flight.sent).count()));
}

void Worker::Release(uint32_t tag) {
  Flight& flight = flights_[tag];
  if (flight.bounce != nullptr) arena_.Free(flight.bounce, flight.piece.length);
  flight.transfer.reset();
  free_tags_.push_back(tag);
}

}  // namespace outcrop::disk
