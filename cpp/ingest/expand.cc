#include "ingest/expand.h"

#include "random/philox.h"

namespace outcrop::ingest {

Expansion::Expansion(uint64_t num_nodes, uint64_t copies, std::span<const double> kernel,
                     uint64_t seed)
    : num_nodes_(num_nodes), copies_(copies), seed_(seed) {
  constexpr double kOne32 = 4294967296.0;
  for (double entry : kernel) thresholds_.push_back(static_cast<uint64_t>(entry * kOne32 + 0.5));
}

template <typename IndexIn, typename IndexOut>
size_t Expansion::Expand(uint64_t copy, std::span<const int64_t> indptr,
                         std::span<const IndexIn> indices, std::span<IndexOut> out,
                         std::span<int64_t> degrees) const {
  size_t written = 0;
  for (size_t node = 0; node + 1 < indptr.size(); ++node) {
    const size_t before = written;
    for (int64_t edge = indptr[node]; edge < indptr[node + 1]; ++edge) {
      const auto source = static_cast<uint64_t>(indices[static_cast<size_t>(edge - indptr[0])]);
      random::Block bits{};
      for (uint64_t from = 0; from < copies_; ++from) {
        // Draws are numbered by (copy, from), four to a block.
        const auto draw = static_cast<uint32_t>(copy * ((copies_ + 3) / 4) + from / 4);
        if (from % 4 == 0) {
          bits = random::Draw(seed_, random::Purpose::kExpand, static_cast<uint64_t>(edge), draw);
        }
        if (bits[from % 4] < thresholds_[from * copies_ + copy]) {
          out[written++] = static_cast<IndexOut>(from * num_nodes_ + source);
        }
      }
    }
    degrees[node] = static_cast<int64_t>(written - before);
  }
  return written;
}

#define OUTCROP_EXPAND(IN, OUT)                                                              \
  template size_t Expansion::Expand(uint64_t, std::span<const int64_t>, std::span<const IN>, \
                                    std::span<OUT>, std::span<int64_t>) const
OUTCROP_EXPAND(int32_t, int32_t);
OUTCROP_EXPAND(int32_t, int64_t);
OUTCROP_EXPAND(int64_t, int64_t);
#undef OUTCROP_EXPAND

}  // namespace outcrop::ingest
