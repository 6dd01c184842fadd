#include "layout/blocks.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "layout/pages.h"

namespace outcrop::layout {
namespace {

uint64_t BlockChecksum(std::span<const std::byte> block, uint64_t number) {
  return PageChecksum(block, number);
}

// Whether what a block says of its own sizes can be true.
bool IsSound(const BlockHeader& header, std::span<const std::byte> block, uint32_t entry_bytes) {
  if (header.nodes == 0 || header.nodes > block.size() / sizeof(uint32_t)) return false;
  const uint64_t begin = EntriesBegin(header.nodes);
  if (begin > block.size() || header.entries > (block.size() - begin) / entry_bytes) return false;
  const auto* ends = reinterpret_cast<const uint32_t*>(block.data() + sizeof(BlockHeader));
  const size_t last = header.nodes - 1;
  bool ascend = ends[last] == header.entries;
  for (size_t i = 0; i < last; ++i) ascend &= ends[i] <= ends[i + 1];
  if (!ascend) return false;
  const int64_t before = last == 0 ? header.before : 0;
  const int64_t here = ends[last] - (last == 0 ? 0 : ends[last - 1]);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  return header.first_node >= 0 && header.first_node < kMost && header.before >= 0 &&
         header.before < kMost && header.first_edge >= header.before && header.first_edge < kMost &&
         header.last_degree >= before + here;
}

}  // namespace

std::string BlockProblem(std::span<std::byte> block, uint64_t number, uint32_t entry_bytes,
                         int64_t last_node) {
  auto& header = *reinterpret_cast<BlockHeader*>(block.data());
  const uint64_t checksum = header.checksum;
  header.checksum = 0;
  if (BlockChecksum(block, number) != checksum) {
    return "block " + std::to_string(number) + " differs from its checksum";
  }
  if (!IsSound(header, block, entry_bytes) || header.first_node + header.nodes - 1 != last_node) {
    return "block " + std::to_string(number) + " contradicts itself, or the index";
  }
  return "";
}

template <typename Index>
BlockWriter<Index>::BlockWriter(uint64_t block_bytes, int64_t num_nodes)
    : block_bytes_(block_bytes), num_nodes_(num_nodes) {
  ends_.reserve(block_bytes / sizeof(uint32_t));
  entries_.reserve(block_bytes / sizeof(Index));
}

template <typename Index>
typename BlockWriter<Index>::Taken BlockWriter<Index>::Add(std::span<const int64_t> offsets,
                                                           std::span<const Index> entries,
                                                           std::span<std::byte> out,
                                                           std::span<int64_t> last_nodes) {
  Taken taken;
  const auto close = [&] {
    if (taken.blocks == last_nodes.size()) return false;
    Close(out.subspan(taken.blocks * block_bytes_, block_bytes_), &last_nodes[taken.blocks]);
    ++taken.blocks;
    return true;
  };
  while (taken.nodes + 1 < offsets.size()) {
    const int64_t begin = offsets[taken.nodes], end = offsets[taken.nodes + 1];
    if (begin != edges_ - taken_ || end < begin) {
      throw BadBlock("indptr.npy: node " + std::to_string(node_) + ": its list begins at edge " +
                     std::to_string(begin) + " and ends at " + std::to_string(end));
    }
    const auto degree = static_cast<uint64_t>(end - begin);
    if (!begun_) {
      const bool fits = Fits(ends_.size() + 1, entries_.size() + degree);
      if (!fits && !ends_.empty() && !close()) return taken;
      if (ends_.empty()) Open(begin, 0);
      ends_.push_back(static_cast<uint32_t>(entries_.size()));
      header_.last_degree = end - begin;
      begun_ = true;
    }
    const uint64_t left = degree - static_cast<uint64_t>(taken_);
    const uint64_t count = std::min({left, Room(), uint64_t{entries.size() - taken.entries}});
    Copy(entries.subspan(taken.entries, count));
    taken.entries += count;
    if (count == left) {
      begun_ = false;
      taken_ = 0;
      ++node_;
      ++taken.nodes;
    } else if (Room() != 0 || !close()) {
      return taken;
    } else {
      Open(begin + taken_, taken_);
      ends_.push_back(0);
      header_.last_degree = end - begin;
    }
  }
  return taken;
}

template <typename Index>
uint64_t BlockWriter<Index>::Room() const {
  return (block_bytes_ - EntriesBegin(ends_.size())) / sizeof(Index) - entries_.size();
}

template <typename Index>
void BlockWriter<Index>::Open(int64_t first_edge, int64_t before) {
  header_ = BlockHeader{};
  header_.first_node = node_;
  header_.first_edge = first_edge;
  header_.before = before;
}

template <typename Index>
void BlockWriter<Index>::Copy(std::span<const Index> entries) {
  for (const Index entry : entries) {
    if (entry < 0 || static_cast<int64_t>(entry) >= num_nodes_) {
      throw BadBlock("indices.npy: an edge of node " + std::to_string(node_) + " comes from " +
                     std::to_string(entry) + ", which is no node");
    }
  }
  entries_.insert(entries_.end(), entries.begin(), entries.end());
  ends_.back() = static_cast<uint32_t>(entries_.size());
  taken_ += static_cast<int64_t>(entries.size());
  edges_ += static_cast<int64_t>(entries.size());
}

template <typename Index>
void BlockWriter<Index>::Close(std::span<std::byte> out, int64_t* last_node) {
  header_.nodes = static_cast<uint32_t>(ends_.size());
  header_.entries = static_cast<uint32_t>(entries_.size());
  std::memset(out.data(), 0, out.size());
  std::memcpy(out.data(), &header_, sizeof(header_));
  std::memcpy(out.data() + sizeof(header_), ends_.data(), ends_.size() * sizeof(uint32_t));
  if (!entries_.empty()) {
    std::memcpy(out.data() + EntriesBegin(ends_.size()), entries_.data(),
                entries_.size() * sizeof(Index));
  }
  const uint64_t checksum = BlockChecksum(out, number_++);
  std::memcpy(out.data(), &checksum, sizeof(checksum));
  *last_node = header_.first_node + header_.nodes - 1;
  ends_.clear();
  entries_.clear();
}

template <typename Index>
bool BlockWriter<Index>::Finish(std::span<std::byte> out, int64_t* last_node) {
  if (ends_.empty()) return false;
  Close(out, last_node);
  return true;
}

template class BlockWriter<int32_t>;
template class BlockWriter<int64_t>;

}  // namespace outcrop::layout
