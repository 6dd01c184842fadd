#include "sample/hyperbatch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <queue>
#include <stdexcept>
#include <utility>

namespace outcrop::sample {
namespace {

constexpr uint64_t kMostEdges = uint64_t{1} << 32;
constexpr size_t kFlushBytes = 16 << 10;
// Nodes per block from which on it is worth to wake the pool's threads for each.
constexpr uint64_t kNodesForThreads = 2048;
constexpr size_t kAhead = 8;  // lookups whose memory is asked for before it is used

template <typename T>
void Put(std::vector<std::byte>& record, T value) {
  const size_t at = record.size();
  record.resize(at + sizeof(T));
  std::memcpy(record.data() + at, &value, sizeof(T));
}

// Reads values of any size one after the other.
class Parser {
 public:
  explicit Parser(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, Skip(sizeof(T)), sizeof(T));
    return value;
  }
  template <typename Array>
  void TakeInto(Array& array) {
    const size_t bytes = array.size() * sizeof(array[0]);
    if (bytes != 0) std::memcpy(array.data(), Skip(bytes), bytes);
  }
  const std::byte* Skip(size_t bytes) {
    if (bytes > bytes_.size() - at_) throw std::length_error("a stream ends early");
    at_ += bytes;
    return bytes_.data() + at_ - bytes;
  }
  size_t at() const { return at_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace

HyperbatchSampler::HyperbatchSampler(GraphBlocks& blocks, Options options)
    : blocks_(blocks),
      options_(std::move(options)),
      pool_(options_.threads),
      streams_(blocks.engine(), pool_, options_.scratch, options_.memory_bytes),
      wanted_(blocks.num_blocks()),
      relabeller_(blocks.num_nodes()) {}

uint64_t HyperbatchSampler::LeastBytes(uint64_t batches) {
  return Streams::LeastBytes(batches * kKinds);
}

void HyperbatchSampler::Begin(size_t batches) {
  streams_.Reset(batches * kKinds);
  wanted_.Clear();
  keys_.clear();
  frontier_nodes_ = 0;
  most_batches_ = batches;
}

void HyperbatchSampler::Add(const BatchKey& key, std::span<const int64_t> seeds) {
  if (keys_.size() == most_batches_) throw std::invalid_argument("more batches than were begun");
  const size_t batch = keys_.size();
  keys_.push_back(key);
  relabeller_.Begin(seeds);
  Expand(batch);
}

void HyperbatchSampler::Sample() {
  SampleFirst();
  for (size_t batch = 0; options_.fanouts.size() > 1 && batch < keys_.size(); ++batch) {
    LoadFirst(batch);
    Continue(batch, {});
  }
  SampleOthers();
}

void HyperbatchSampler::SampleFirst() {
  if (!options_.fanouts.empty()) Sweep(0);
  frontier_nodes_ = 0;
}

void HyperbatchSampler::LoadFirst(size_t batch) {
  if (pool_.cancelled()) throw threads::Cancelled();
  Relabel(batch, 0);
}

void HyperbatchSampler::Continue(size_t batch, std::span<const uint8_t> deferred) {
  relabeller_.Defer(deferred);
  Expand(batch);
}

void HyperbatchSampler::SampleOthers() {
  for (size_t hop = 1; hop < options_.fanouts.size(); ++hop) {
    if (hop > 1) {
      frontier_nodes_ = 0;
      for (size_t batch = 0; batch < keys_.size(); ++batch) {
        if (pool_.cancelled()) throw threads::Cancelled();
        Relabel(batch, hop - 1);
        Expand(batch);
      }
    }
    Sweep(hop);
  }
}

const Subgraph& HyperbatchSampler::Load(size_t batch) {
  if (pool_.cancelled()) throw threads::Cancelled();
  Relabel(batch, options_.fanouts.size() - 1);
  return relabeller_.subgraph();
}

// The nodes that a batch expands next -> its run, and the blocks that have them. Its state is
// saved.
void HyperbatchSampler::Expand(size_t batch) {
  SortFrontier();
  const size_t stream = StreamOf(batch, kRun);
  uint64_t block = 0;
  for (size_t i = 0; i < sorted_.size(); ++i) {
    const int64_t node = sorted_[i].node;
    if (i > 0 && sorted_[i - 1].node == node) continue;  // its picks are the same
    block = blocks_.BlockOf(node, block);
    wanted_.Add(block);
    streams_.Append(stream, &node, sizeof(node));
    ++frontier_nodes_;
  }
  if (most_batches_ > 1) SaveState(batch);
}

// The nodes that are expanded next -> sorted_, by node, of equals by place.
void HyperbatchSampler::SortFrontier() {
  const std::span<const int64_t> nodes = relabeller_.frontier();
  const size_t count = nodes.size();
  sorted_.resize(count);
  spare_.resize(count);
  uint64_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    sorted_[i] = {nodes[i], static_cast<uint32_t>(i)};
    most = std::max(most, static_cast<uint64_t>(nodes[i]));
  }
  constexpr uint32_t kBits = 11;
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  for (uint32_t shift = 0; shift < 64 && most >> shift != 0; shift += kBits) {
    std::array<size_t, kMask + 2> at{};
    const auto digit = [&](const Wanted& wanted) {
      return static_cast<uint64_t>(wanted.node) >> shift & kMask;
    };
    for (size_t i = 0; i < count; ++i) ++at[digit(sorted_[i]) + 1];
    for (size_t d = 0; d < kMask; ++d) at[d + 1] += at[d];
    for (size_t i = 0; i < count; ++i) spare_[at[digit(sorted_[i])]++] = sorted_[i];
    std::swap(sorted_, spare_);
  }
}

void HyperbatchSampler::SaveState(size_t batch) {
  const Subgraph& subgraph = relabeller_.subgraph();
  const size_t stream = StreamOf(batch, kState);
  const auto append = [&](const auto& array) {
    streams_.Append(stream, array.data(), array.size() * sizeof(array[0]));
  };
  const std::array<uint64_t, 5> sizes{subgraph.edges_per_hop.size(), subgraph.nodes.size(),
                                      subgraph.sources.size(), subgraph.counts.size(),
                                      subgraph.edge_ids.size()};
  append(sizes);
  append(subgraph.nodes_per_hop);
  append(subgraph.edges_per_hop);
  append(subgraph.nodes);
  append(subgraph.sources);
  append(subgraph.counts);
  append(subgraph.edge_ids);
}

void HyperbatchSampler::LoadState(size_t batch) {
  streams_.TakeAll(StreamOf(batch, kState), bytes_);
  Parser parser(bytes_);
  const auto sizes = parser.Take<std::array<uint64_t, 5>>();
  Subgraph& subgraph = relabeller_.subgraph();
  subgraph.Clear();
  subgraph.nodes_per_hop.resize(sizes[0] + 1);
  subgraph.edges_per_hop.resize(sizes[0]);
  subgraph.nodes.resize(sizes[1]);
  subgraph.sources.resize(sizes[2]);
  subgraph.counts.resize(sizes[3]);
  subgraph.edge_ids.resize(sizes[4]);
  parser.TakeInto(subgraph.nodes_per_hop);
  parser.TakeInto(subgraph.edges_per_hop);
  parser.TakeInto(subgraph.nodes);
  parser.TakeInto(subgraph.sources);
  parser.TakeInto(subgraph.counts);
  parser.TakeInto(subgraph.edge_ids);
  relabeller_.Restore();
}

// What a hop drew for a batch, in the order of nodes -> its subgraph, in the order of places.
void HyperbatchSampler::Relabel(size_t batch, size_t hop) {
  if (most_batches_ > 1) LoadState(batch);
  SortFrontier();
  streams_.TakeAll(StreamOf(batch, kPicks), bytes_);
  const size_t count = sorted_.size();
  const size_t entry_bytes = blocks_.entry_bytes();
  const size_t pick_bytes = entry_bytes + (options_.edge_ids ? sizeof(int64_t) : 0);
  first_.resize(count + 1);
  offsets_.resize(count);
  Parser parser(bytes_);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t place = sorted_[i].place;
    if (options_.fanouts[hop] == 0) {
      first_[place + 1] = offsets_[place] = 0;
    } else if (i > 0 && sorted_[i - 1].node == sorted_[i].node) {
      first_[place + 1] = first_[sorted_[i - 1].place + 1];
      offsets_[place] = offsets_[sorted_[i - 1].place];
    } else {
      const auto drawn = parser.Take<uint32_t>();
      first_[place + 1] = drawn;
      offsets_[place] = parser.at();
      parser.Skip(drawn * pick_bytes);
    }
  }
  first_[0] = 0;
  for (size_t place = 0; place < count; ++place) first_[place + 1] += first_[place];
  Subgraph& subgraph = relabeller_.subgraph();
  const uint64_t total = first_[count], before = subgraph.edge_ids.size();
  if (subgraph.sources.size() + total >= kMostEdges) {
    throw std::length_error("a batch of more than 2^32 edges; use smaller batches or fanouts");
  }
  neighbours_.resize(total);
  if (options_.edge_ids) subgraph.edge_ids.resize(before + total);
  for (size_t place = 0; place < count; ++place) {
    const std::byte* from = bytes_.data() + offsets_[place];
    if (place + kAhead < count) __builtin_prefetch(bytes_.data() + offsets_[place + kAhead]);
    for (uint64_t e = first_[place]; e < first_[place + 1]; ++e, from += pick_bytes) {
      int32_t narrow;
      if (entry_bytes == sizeof(narrow)) {
        std::memcpy(&narrow, from, sizeof(narrow));
        neighbours_[e] = narrow;
      } else {
        std::memcpy(&neighbours_[e], from, sizeof(int64_t));
      }
      if (options_.edge_ids) {
        std::memcpy(&subgraph.edge_ids[before + e], from + entry_bytes, sizeof(int64_t));
      }
    }
  }
  relabeller_.Add(first_, neighbours_);
}

// Draws one hop of all batches.
void HyperbatchSampler::Sweep(size_t hop) {
  const int64_t fanout = options_.fanouts[hop];
  const size_t window = streams_.chunk_bytes() / sizeof(int64_t);
  cursors_.resize(keys_.size());
  using Turn = std::pair<uint64_t, size_t>;  // a block, and a batch that waits for it
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  for (size_t batch = 0; batch < keys_.size(); ++batch) {
    Cursor& cursor = cursors_[batch];
    cursor.window.resize(window);
    cursor.at = cursor.count = 0;
    cursor.edges = 0;
    cursor.open = false;
    cursor.hop_key = HopKey(keys_[batch], static_cast<uint32_t>(hop));
    do {
      Advance(batch, 0);
    } while (fanout == 0 && cursor.count != 0);  // nothing is drawn: the run is dropped
    if (cursor.count != 0) turns.emplace(cursor.block, batch);
  }
  if (fanout == 0) wanted_.Clear();
  const bool narrow = blocks_.entry_bytes() == sizeof(int32_t);
  const bool together = pool_.threads() > 1 && wanted_.count() != 0 &&
                        frontier_nodes_ / wanted_.count() >= kNodesForThreads;
  BlockSweep sweep(blocks_, wanted_, pool_);
  Work work;
  std::vector<size_t> here;
  uint64_t number = 0;
  while (!turns.empty()) {
    const std::byte* block = sweep.Next(&number);
    here.clear();
    for (; !turns.empty() && turns.top().first == number; turns.pop()) {
      here.push_back(turns.top().second);
    }
    if (block == nullptr || here.empty()) throw std::logic_error("a block that nobody waits for");
    const auto serve = [&](std::span<const size_t> batches, Work& with) {
      narrow ? ServeAll<int32_t>(batches, number, block, with, fanout)
             : ServeAll<int64_t>(batches, number, block, with, fanout);
    };
    if (together && here.size() > 1) {
      pool_.For(here.size(), 1, [&](size_t begin, size_t end) {
        Work own;
        serve(std::span(here).subspan(begin, end - begin), own);
      });
    } else {
      serve(here, work);
    }
    for (const size_t batch : here) {
      const Cursor& cursor = cursors_[batch];
      if (cursor.count == 0) continue;
      if (cursor.open) sweep.Want(cursor.block);
      turns.emplace(cursor.block, batch);
    }
  }
}

template <typename Index>
void HyperbatchSampler::ServeAll(std::span<const size_t> batches, uint64_t number,
                                 const std::byte* block, Work& work, int64_t fanout) {
  const layout::BlockView<Index> view(block);
  for (const size_t batch : batches) Serve(batch, number, view, work, fanout);
}

// Draws for the nodes of a batch whose lists, or the next parts of them, are in a block.
template <typename Index>
void HyperbatchSampler::Serve(size_t batch, uint64_t number, const layout::BlockView<Index>& view,
                              Work& work, int64_t fanout) {
  Cursor& cursor = cursors_[batch];
  while (cursor.count != 0 && cursor.block == number) {
    const int64_t node = cursor.window[cursor.at];
    if (node < view.header().first_node || node > view.last_node()) {
      ThrowBad(number, "has no list of node " + std::to_string(node));
    }
    const bool goes_on = cursor.open;
    if (!goes_on) OpenList(cursor, number, view, work, fanout);
    TakeEntries(batch, number, view[node], goes_on ? cursor.positions : work.positions, work);
    if (cursor.done == cursor.drawn) {
      cursor.open = false;
      Advance(batch, number);
      continue;
    }
    if (!goes_on) std::swap(cursor.positions, work.positions);
    const uint64_t position =
        cursor.all ? cursor.done : static_cast<uint64_t>(cursor.positions[cursor.done]);
    cursor.block = cursor.first_block +
                   position / layout::EntriesPerBlock(blocks_.block_bytes(), sizeof(Index));
    if (cursor.block <= number || cursor.block >= blocks_.num_blocks()) {
      ThrowBad(number, "has a part of another size of the list of node " + std::to_string(node));
    }
  }
  Flush(batch, work);
}

template <typename Index>
void HyperbatchSampler::OpenList(Cursor& cursor, uint64_t number,
                                 const layout::BlockView<Index>& view, Work& work, int64_t fanout) {
  const int64_t node = cursor.window[cursor.at];
  if (cursor.at + kAhead < cursor.count) {
    const int64_t later = cursor.window[cursor.at + kAhead];
    if (later <= view.last_node()) view.Prefetch(later);
  }
  const layout::BlockObject<Index> object = view[node];
  if (object.before != 0 || object.begin > blocks_.num_edges() - object.degree) {
    ThrowBad(number, "has a list of node " + std::to_string(node) +
                         " that is not within the graph's edges");
  }
  cursor.open = true;
  cursor.first_block = number;
  cursor.list = {object.begin, object.degree};
  cursor.done = 0;
  const auto degree = static_cast<uint64_t>(object.degree);
  cursor.drawn = DrawCount(degree, fanout, options_.replace);
  if (cursor.drawn >= kMostEdges || (cursor.edges += cursor.drawn) >= kMostEdges) {
    throw std::length_error("a batch of more than 2^32 edges; use smaller batches or fanouts");
  }
  cursor.all = fanout < 0 || (options_.replace == Replace::kNo && cursor.drawn == degree);
  if (!cursor.all) {
    work.positions.resize(cursor.drawn);
    work.drawer.Draw(cursor.hop_key, static_cast<uint64_t>(node), 0, degree, options_.replace,
                     work.positions);
  }
  Put(work.record, static_cast<uint32_t>(cursor.drawn));
}

// Entries at drawn positions that are in this block -> the batch's picks.
template <typename Index>
void HyperbatchSampler::TakeEntries(size_t batch, uint64_t number,
                                    const layout::BlockObject<Index>& object,
                                    std::span<const int64_t> positions, Work& work) {
  Cursor& cursor = cursors_[batch];
  if (object.begin != cursor.list.begin || object.degree != cursor.list.degree) {
    ThrowBad(number,
             "has a part of another list of node " + std::to_string(cursor.window[cursor.at]));
  }
  const int64_t end = object.before + static_cast<int64_t>(object.entries.size());
  for (; cursor.done < cursor.drawn; ++cursor.done) {
    const int64_t position =
        cursor.all ? static_cast<int64_t>(cursor.done) : positions[cursor.done];
    if (position >= end) return;
    if (position < object.before) ThrowBad(number, "overlaps the block before it");
    const Index entry = object.entries[static_cast<size_t>(position - object.before)];
    if (entry < 0 || static_cast<int64_t>(entry) >= blocks_.num_nodes()) {
      ThrowBad(number, "has an edge from " + std::to_string(entry) + ", which is no node");
    }
    Put(work.record, entry);
    if (options_.edge_ids) Put(work.record, object.begin + position);
    if (work.record.size() >= kFlushBytes) Flush(batch, work);
  }
}

// To the next node of a batch's run, and the block that it is in; a count of 0: there is none.
void HyperbatchSampler::Advance(size_t batch, uint64_t number) {
  Cursor& cursor = cursors_[batch];
  if (++cursor.at >= cursor.count) {
    const std::span<int64_t> window(cursor.window);
    const size_t bytes = streams_.TakeChunk(StreamOf(batch, kRun), std::as_writable_bytes(window));
    cursor.at = 0;
    cursor.count = bytes / sizeof(int64_t);
    if (cursor.count == 0) return;
  }
  cursor.block = blocks_.BlockOf(cursor.window[cursor.at], number);
}

void HyperbatchSampler::Flush(size_t batch, Work& work) {
  streams_.Append(StreamOf(batch, kPicks), work.record.data(), work.record.size());
  work.record.clear();
}

void HyperbatchSampler::ThrowBad(uint64_t number, const std::string& what) const {
  throw layout::BadBlock(blocks_.path() + ": block " + std::to_string(number) + " " + what);
}

uint64_t HyperbatchSampler::capacity_bytes() const {
  uint64_t bytes = streams_.memory_bytes() + wanted_.capacity_bytes() +
                   relabeller_.capacity_bytes() + sorted_.capacity_bytes() +
                   spare_.capacity_bytes() + bytes_.capacity_bytes() + first_.capacity_bytes() +
                   offsets_.capacity_bytes() + neighbours_.capacity_bytes();
  for (const Cursor& cursor : cursors_) {
    bytes += (cursor.window.capacity() + cursor.positions.capacity()) * sizeof(int64_t);
  }
  return bytes;
}

}  // namespace outcrop::sample
