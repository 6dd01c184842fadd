// Hyperbatch sampling: the seeds of many batches -> their subgraphs, from blocks that are read once
// per hop for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layout/blocks.h"
#include "memory/buffer.h"
#include "sample/draw.h"
#include "sample/graph_blocks.h"
#include "sample/relabel.h"
#include "sample/streams.h"
#include "sample/subgraph.h"
#include "sample/topology.h"
#include "threads/pool.h"

namespace outcrop::sample {

// Hop by hop: the nodes that each batch expands are sorted, so that one sweep over the blocks in
// their order serves all batches; what was drawn is kept per batch, in the order of nodes, and
// relabelled one batch at a time. Choices are keyed by batch, hop and node, and so the subgraphs
// are those that NeighborSampler gives. Memory beside the blocks: `memory_bytes`, and what one
// batch takes. Not thread-safe, but several may share the blocks.
class HyperbatchSampler {
 public:
  struct Options {
    std::vector<int64_t> fanouts;
    Replace replace = Replace::kNo;
    bool edge_ids = true;  // else subgraphs have none
    uint32_t threads = 1;
    uint64_t memory_bytes = 0;  // for what batches keep while they are sampled
    std::string scratch;        // a file for what has no room there
  };

  // REQUIRES: blocks outlive it.
  HyperbatchSampler(GraphBlocks& blocks, Options options);

  // The least memory_bytes for so many batches.
  static uint64_t LeastBytes(uint64_t batches);

  // Forgets what was sampled: up to `batches` batches are added, then sampled. Sample and Load
  // throw disk::IoError, disk::Cancelled, threads::Cancelled, layout::BadBlock; then begin again.
  void Begin(size_t batches);
  // REQUIRES: seeds are nodes.
  void Add(const BatchKey& key, std::span<const int64_t> seeds);
  void Sample();
  // The same in steps: SampleFirst; of each batch, in their order, LoadFirst, which shows what the
  // first hop found, and Continue, with what NeighborSampler's Finish is told; then SampleOthers.
  // REQUIRES: two hops at least.
  void SampleFirst();
  void LoadFirst(size_t batch);
  void Continue(size_t batch, std::span<const uint8_t> deferred);
  void SampleOthers();
  // The subgraph of a batch, each once, until the next call.
  const Subgraph& Load(size_t batch);

  size_t size() const { return keys_.size(); }
  const Subgraph& subgraph() const { return relabeller_.subgraph(); }
  void Cancel() { pool_.Cancel(); }
  uint64_t capacity_bytes() const;
  uint64_t spilled_bytes() const { return streams_.spilled_bytes(); }

 private:
  // Kinds of streams, one of each per batch.
  enum Kind : size_t { kState, kRun, kPicks, kKinds };
  static size_t StreamOf(size_t batch, Kind kind) { return batch * kKinds + kind; }

  // A node that is expanded, and its place among those of its batch.
  struct Wanted {
    int64_t node;
    uint32_t place;
  };

  // Where a batch is in a sweep.
  struct Cursor {
    std::vector<int64_t> window;  // nodes of its run that were read
    size_t at = 0, count = 0;     // the current one, and how many there are
    uint64_t block = 0;           // which it waits for
    uint64_t hop_key = 0;
    uint64_t edges = 0;  // drawn in this hop
    // Of the current node, once its list was begun
    bool open = false;
    bool all = false;  // every position is drawn; else `positions` has them
    uint64_t first_block = 0;
    List list;
    uint64_t drawn = 0, done = 0;
    std::vector<int64_t> positions;  // where the list goes on in another block
  };

  // What serving batches takes, whichever they are.
  struct Work {
    Drawer drawer;
    std::vector<int64_t> positions;
    std::vector<std::byte> record;  // on its way to a stream
  };

  void Expand(size_t batch);
  void SaveState(size_t batch);
  void LoadState(size_t batch);
  void Relabel(size_t batch, size_t hop);
  void SortFrontier();
  void Sweep(size_t hop);
  template <typename Index>
  void ServeAll(std::span<const size_t> batches, uint64_t number, const std::byte* block,
                Work& work, int64_t fanout);
  template <typename Index>
  void Serve(size_t batch, uint64_t number, const layout::BlockView<Index>& view, Work& work,
             int64_t fanout);
  template <typename Index>
  void OpenList(Cursor& cursor, uint64_t number, const layout::BlockView<Index>& view, Work& work,
                int64_t fanout);
  template <typename Index>
  void TakeEntries(size_t batch, uint64_t number, const layout::BlockObject<Index>& object,
                   std::span<const int64_t> positions, Work& work);
  void Advance(size_t batch, uint64_t number);
  void Flush(size_t batch, Work& work);
  [[noreturn]] void ThrowBad(uint64_t number, const std::string& what) const;

  // Constant after construction
  GraphBlocks& blocks_;
  const Options options_;

  threads::Pool pool_;
  Streams streams_;
  BlockSet wanted_;  // by the next sweep
  std::vector<BatchKey> keys_;
  size_t most_batches_ = 0;

  Relabeller relabeller_;
  uint64_t frontier_nodes_ = 0;  // that the next sweep expands, of all batches
  std::vector<Cursor> cursors_;
  memory::Buffer<Wanted> sorted_, spare_;
  memory::Buffer<std::byte> bytes_;
  memory::Buffer<uint64_t> first_, offsets_;
  memory::Buffer<int64_t> neighbours_;
};

}  // namespace outcrop::sample
