// Streams: bytes appended to many streams at once, and taken from one at a time; what has no room
// in memory is in a scratch file meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "disk/engine.h"
#include "disk/file.h"
#include "disk/memory.h"
#include "memory/buffer.h"
#include "threads/pool.h"

namespace outcrop::sample {

// Streams are made of chunks of one size. Full ones are written to the file when a new one is
// needed and memory has none, the oldest first. What is taken is gone.
// Thread-safe for different streams; all throw disk::IoError, layout::BadBlock where other bytes
// come back than were written, and threads::Cancelled once the pool was cancelled.
class Streams {
 public:
  // The file is made where it is needed, and removed with this object. REQUIRES: engine and pool
  // outlive it.
  Streams(disk::Engine& engine, const threads::Pool& pool, std::string path, uint64_t memory_bytes);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // The least memory for so many streams.
  static uint64_t LeastBytes(uint64_t streams);

  // Forgets everything. Throws std::invalid_argument where memory is less than LeastBytes. Not
  // while others use it.
  void Reset(size_t streams);

  void Append(size_t stream, const void* data, size_t bytes);

  // The next chunk of a stream -> out, at most chunk_bytes; 0: it is at its end.
  size_t TakeChunk(size_t stream, std::span<std::byte> out);
  // All that is left of it -> out.
  void TakeAll(size_t stream, memory::Buffer<std::byte>& out);

  size_t chunk_bytes() const { return chunk_bytes_; }
  uint64_t memory_bytes() const { return memory_.size(); }
  uint64_t spilled_bytes() const;  // written to the file since it was made

 private:
  struct Chunk {
    int64_t slot = -1;   // in memory; -1: in the file
    int64_t place = -1;  // in the file, in chunks
    uint32_t bytes = 0;
    uint64_t checksum = 0;  // where it is in the file
  };
  struct Stream {
    // For whoever has the stream
    std::byte* tail = nullptr;  // where the next byte goes
    size_t room = 0;            // of the last chunk
    uint64_t bytes = 0;         // that are left in the stream
    // Guarded by mutex_
    std::deque<Chunk> chunks;
    uint64_t taken = 0;  // chunks before the first that is left
  };

  void AddChunk(size_t stream);
  void Spill();
  void OpenFile(uint64_t chunks);
  void Free(const Chunk& chunk);
  void Check(const Chunk& chunk, const std::byte* read) const;
  std::byte* Memory(int64_t slot) const {
    return memory_.data() + static_cast<size_t>(slot) * chunk_bytes_;
  }

  // Constant after construction
  disk::Engine& engine_;
  const threads::Pool& pool_;
  const std::string path_;
  const disk::AlignedMemory memory_;

  size_t chunk_bytes_ = 0;  // since Reset
  std::vector<Stream> streams_;

  mutable std::mutex mutex_;
  // Guarded by mutex_
  std::shared_ptr<disk::File> file_;
  std::vector<int64_t> free_slots_, free_places_;
  std::deque<std::pair<size_t, uint64_t>> full_;  // stream and number of chunk, oldest first
  int64_t places_ = 0;                            // that were ever used
  uint64_t spilled_bytes_ = 0;
};

}  // namespace outcrop::sample
