#include "sample/streams.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "layout/blocks.h"
#include "layout/pages.h"
#include "sample/waiting.h"

namespace outcrop::sample {
namespace {

constexpr uint64_t kLeastChunk = disk::kPageBytes, kMostChunk = 256 << 10;
constexpr uint64_t kSpare = 8;      // chunks beside one for each stream
constexpr uint64_t kPerStream = 4;  // chunks of each, where chunks could be smaller

}  // namespace

Streams::Streams(disk::Engine& engine, const threads::Pool& pool, std::string path,
                 uint64_t memory_bytes)
    : engine_(engine), pool_(pool), path_(std::move(path)), memory_(memory_bytes) {}

Streams::~Streams() {
  if (file_ != nullptr) unlink(path_.c_str());
}

uint64_t Streams::LeastBytes(uint64_t streams) { return (streams + kSpare) * kLeastChunk; }

void Streams::Reset(size_t streams) {
  if (memory_.size() < LeastBytes(streams)) {
    throw std::invalid_argument("memory for so many batches must have at least " +
                                std::to_string(LeastBytes(streams)) + " bytes (got " +
                                std::to_string(memory_.size()) + ")");
  }
  const uint64_t share = memory_.size() / (kPerStream * streams + kSpare);
  chunk_bytes_ = std::clamp(share / kLeastChunk * kLeastChunk, kLeastChunk, kMostChunk);
  streams_.clear();
  streams_.resize(streams);
  full_.clear();
  free_places_.clear();
  places_ = 0;
  free_slots_.clear();
  const auto slots = static_cast<int64_t>(memory_.size() / chunk_bytes_);
  for (int64_t slot = slots; slot-- > 0;) free_slots_.push_back(slot);
}

void Streams::Append(size_t stream, const void* data, size_t bytes) {
  Stream& to = streams_[stream];
  const auto* from = static_cast<const std::byte*>(data);
  to.bytes += bytes;
  while (bytes > 0) {
    if (to.room == 0) AddChunk(stream);
    const size_t count = std::min(bytes, to.room);
    std::memcpy(to.tail, from, count);
    to.tail += count;
    to.room -= count;
    from += count;
    bytes -= count;
  }
}

void Streams::AddChunk(size_t stream) {
  const std::lock_guard lock(mutex_);
  Stream& to = streams_[stream];
  if (!to.chunks.empty()) {
    to.chunks.back().bytes = static_cast<uint32_t>(chunk_bytes_);
    full_.emplace_back(stream, to.taken + to.chunks.size() - 1);
  }
  if (free_slots_.empty()) Spill();
  to.chunks.push_back({free_slots_.back()});
  free_slots_.pop_back();
  to.tail = Memory(to.chunks.back().slot);
  to.room = chunk_bytes_;
}

// Writes an eighth of memory, or what there is of full chunks.
void Streams::Spill() {
  const size_t most = std::max<size_t>(memory_.size() / chunk_bytes_ / 8, 1);
  std::vector<Chunk*> chosen;
  while (chosen.size() < most && !full_.empty()) {
    const auto [stream, number] = full_.front();
    full_.pop_front();
    Stream& of = streams_[stream];
    if (number < of.taken) continue;  // it was taken since
    chosen.push_back(&of.chunks[number - of.taken]);
  }
  if (chosen.empty()) throw std::length_error("no memory is left for what batches keep");
  std::vector<int64_t> offsets, lengths, sources;
  const auto size = static_cast<int64_t>(chunk_bytes_);
  for (Chunk* chunk : chosen) {
    chunk->checksum = layout::PageChecksum({Memory(chunk->slot), chunk_bytes_}, 0);
    if (free_places_.empty()) {
      chunk->place = places_++;
    } else {
      chunk->place = free_places_.back();
      free_places_.pop_back();
    }
    offsets.push_back(chunk->place * size);
    lengths.push_back(size);
    sources.push_back(chunk->slot * size);
  }
  OpenFile(static_cast<uint64_t>(places_));
  WaitFor(
      *engine_.Write(file_, disk::ExtentList::Ranges(offsets, lengths, sources, memory_.data())),
      pool_);
  for (Chunk* chunk : chosen) free_slots_.push_back(std::exchange(chunk->slot, -1));
  spilled_bytes_ += chosen.size() * chunk_bytes_;
}

void Streams::OpenFile(uint64_t chunks) {
  if (file_ == nullptr) file_ = disk::File::Create(path_, 0, disk::Access::kAuto);
  const uint64_t size = chunks * chunk_bytes_;
  if (file_->size() < size) file_->Reserve(size);
}

void Streams::Free(const Chunk& chunk) {
  if (chunk.slot >= 0) {
    free_slots_.push_back(chunk.slot);
  } else {
    free_places_.push_back(chunk.place);
  }
}

void Streams::Check(const Chunk& chunk, const std::byte* read) const {
  if (layout::PageChecksum({read, chunk_bytes_}, 0) == chunk.checksum) return;
  throw layout::BadBlock(path_ + ": " + std::to_string(chunk_bytes_) + " B at " +
                         std::to_string(chunk.place * static_cast<int64_t>(chunk_bytes_)) +
                         ": other bytes than were written");
}

size_t Streams::TakeChunk(size_t stream, std::span<std::byte> out) {
  Stream& from = streams_[stream];
  if (from.bytes == 0) return 0;
  Chunk chunk;
  {
    const std::lock_guard lock(mutex_);
    chunk = from.chunks.front();
    from.chunks.pop_front();
    ++from.taken;
    if (from.chunks.empty()) {
      chunk.bytes = static_cast<uint32_t>(chunk_bytes_ - from.room);
      from.room = 0;
    }
  }
  // Nobody writes it any more: it is in no list.
  if (chunk.slot >= 0) {
    std::memcpy(out.data(), Memory(chunk.slot), chunk.bytes);
  } else {
    const int64_t offset = chunk.place * static_cast<int64_t>(chunk_bytes_);
    const int64_t length = chunk.bytes, place = 0;
    auto extents = disk::ExtentList::Ranges({&offset, 1}, {&length, 1}, {&place, 1}, out.data());
    WaitFor(*engine_.Read(file_, std::move(extents)), pool_);
    Check(chunk, out.data());
  }
  from.bytes -= chunk.bytes;
  const std::lock_guard lock(mutex_);
  Free(chunk);
  return chunk.bytes;
}

void Streams::TakeAll(size_t stream, memory::Buffer<std::byte>& out) {
  Stream& from = streams_[stream];
  out.resize(from.bytes);
  if (from.bytes == 0) return;
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> offsets, lengths, places;
  size_t at = 0;
  from.chunks.back().bytes = static_cast<uint32_t>(chunk_bytes_ - from.room);
  for (const Chunk& chunk : from.chunks) {
    if (chunk.slot >= 0) {
      std::memcpy(out.data() + at, Memory(chunk.slot), chunk.bytes);
    } else {
      offsets.push_back(chunk.place * static_cast<int64_t>(chunk_bytes_));
      lengths.push_back(chunk.bytes);
      places.push_back(static_cast<int64_t>(at));
    }
    at += chunk.bytes;
  }
  if (!offsets.empty()) {
    WaitFor(*engine_.Read(file_, disk::ExtentList::Ranges(offsets, lengths, places, out.data())),
            pool_);
    at = 0;
    for (const Chunk& chunk : from.chunks) {
      if (chunk.slot < 0) Check(chunk, out.data() + at);
      at += chunk.bytes;
    }
  }
  for (const Chunk& chunk : from.chunks) Free(chunk);
  from.taken += from.chunks.size();
  from.chunks.clear();
  from.bytes = from.room = 0;
}

uint64_t Streams::spilled_bytes() const {
  const std::lock_guard lock(mutex_);
  return spilled_bytes_;
}

}  // namespace outcrop::sample
