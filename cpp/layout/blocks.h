// Blocks: a topology in blocks of one size, each with the lists of some nodes in order of their
// ids. docs/format.md has the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace outcrop::layout {

inline constexpr uint64_t kLeastBlockBytes = 4 << 10;
inline constexpr uint64_t kMostBlockBytes = 4 << 20;

// A graph, or blocks of one, that contradict themselves: a damaged file.
class BadBlock : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How a block begins. Its entries are those of the graph's edges from `first_edge` on.
struct BlockHeader {
  uint64_t checksum = 0;    // of the block in which these 8 bytes are zero
  int64_t first_node = 0;   // the block has objects of [first_node, first_node + nodes)
  int64_t first_edge = 0;   // the position of its first entry in the graph's edges
  int64_t before = 0;       // entries of the first node's list that earlier blocks have
  int64_t last_degree = 0;  // of the last node: its list may go on in the next blocks
  uint32_t nodes = 0;
  uint32_t entries = 0;
};
static_assert(sizeof(BlockHeader) == 48);

// Where entries begin in a block of so many nodes.
constexpr uint64_t EntriesBegin(uint64_t nodes) {
  return (sizeof(BlockHeader) + nodes * sizeof(uint32_t) + 7) / 8 * 8;
}
// Entries of a list that is larger than a block, in each of its blocks but the last.
constexpr uint64_t EntriesPerBlock(uint64_t block_bytes, uint64_t entry_bytes) {
  return (block_bytes - EntriesBegin(1)) / entry_bytes;
}

// The part of a node's list that is in one block.
template <typename Index>
struct BlockObject {
  int64_t begin = 0;   // the list's first edge, in whichever block
  int64_t degree = 0;  // entries of the whole list
  int64_t before = 0;  // how many of them earlier blocks have
  std::span<const Index> entries;
};

// A block that was checked. A view: whoever has its memory keeps it.
template <typename Index>
class BlockView {
 public:
  // REQUIRES: BlockProblem(block, ...) is empty.
  explicit BlockView(const std::byte* block)
      : header_(reinterpret_cast<const BlockHeader*>(block)),
        ends_(reinterpret_cast<const uint32_t*>(block + sizeof(BlockHeader))),
        entries_(reinterpret_cast<const Index*>(block + EntriesBegin(header_->nodes))) {}

  const BlockHeader& header() const { return *header_; }
  int64_t last_node() const { return header_->first_node + header_->nodes - 1; }

  // REQUIRES: first_node <= node <= last_node().
  BlockObject<Index> operator[](int64_t node) const {
    const auto at = static_cast<size_t>(node - header_->first_node);
    const uint32_t first = at == 0 ? 0 : ends_[at - 1];
    const uint32_t count = ends_[at] - first;
    const int64_t before = at == 0 ? header_->before : 0;
    const int64_t degree = at + 1 == header_->nodes ? header_->last_degree : before + count;
    return {header_->first_edge + first - before, degree, before, {entries_ + first, count}};
  }

  // Asks for the memory that says where a node's list is.
  void Prefetch(int64_t node) const { __builtin_prefetch(ends_ + (node - header_->first_node)); }

 private:
  const BlockHeader* header_;
  const uint32_t* ends_;  // of each object: entries up to its end
  const Index* entries_;
};

// What is wrong with a block that was read; empty: nothing. Sets its checksum to zero, so a block
// is checked once. `last_node`: as the index has it.
std::string BlockProblem(std::span<std::byte> block, uint64_t number, uint32_t entry_bytes,
                         int64_t last_node);

// Lists in the order of nodes -> blocks. A list that does not fit into what is left of a block
// begins the next one; one that is larger than a block is split. Holds two blocks.
// Not thread-safe.
template <typename Index>
class BlockWriter {
 public:
  // REQUIRES: block_bytes is a power of two of kLeastBlockBytes to kMostBlockBytes.
  BlockWriter(uint64_t block_bytes, int64_t num_nodes);

  // What one call has used and made.
  struct Taken {
    size_t nodes = 0, entries = 0, blocks = 0;
  };
  // `offsets`: those of the next nodes, and where the last of them ends; `entries`: the next ones.
  // Goes on until one of them is at its end (offsets: one is left), or no block is left in `out`.
  // last_nodes[b]: the last node of out's block b. Throws BadBlock where the graph is wrong.
  // REQUIRES: out has blocks.size() blocks.
  Taken Add(std::span<const int64_t> offsets, std::span<const Index> entries,
            std::span<std::byte> out, std::span<int64_t> last_nodes);

  // The last block -> out, and its last node. False: there is none, since there are no nodes.
  bool Finish(std::span<std::byte> out, int64_t* last_node);

  int64_t num_edges() const { return edges_; }  // that were added

 private:
  bool Fits(uint64_t nodes, uint64_t entries) const {
    return EntriesBegin(nodes) + entries * sizeof(Index) <= block_bytes_;
  }
  uint64_t Room() const;
  void Open(int64_t first_edge, int64_t before);
  void Close(std::span<std::byte> out, int64_t* last_node);
  void Copy(std::span<const Index> entries);

  // Constant after construction
  const uint64_t block_bytes_;
  const int64_t num_nodes_;

  // The open block
  BlockHeader header_;
  std::vector<uint32_t> ends_;
  std::vector<Index> entries_;

  uint64_t number_ = 0;  // of the open block
  int64_t node_ = 0;     // the next one, or the one whose list is on the way
  int64_t taken_ = 0;    // of its entries
  bool begun_ = false;   // whether it has an object
  int64_t edges_ = 0;
};

}  // namespace outcrop::layout
