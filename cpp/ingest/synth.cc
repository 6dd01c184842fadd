#include "ingest/synth.h"

#include <algorithm>
#include <bit>

#include "ingest/edge.h"
#include "random/philox.h"

namespace outcrop::ingest {
namespace {

using random::Below;
using random::Block;
using random::Draw;
using random::High64;
using random::Low64;
using random::Purpose;

constexpr uint64_t kOne16 = uint64_t{1} << 16;
constexpr uint64_t kOne32 = uint64_t{1} << 32;

uint64_t Scaled(double probability, uint64_t one) {
  return std::min(static_cast<uint64_t>(probability * static_cast<double>(one) + 0.5), one);
}

uint64_t MulHigh(uint64_t a, uint64_t b) { return Below(a, b); }

// Ranks in [0, size) with density falling as rank^(-1/2) and rank^(-2/3): integers only, so that
// they are the same on every machine.
uint64_t SquareLaw(uint64_t bits, uint64_t size) { return Below(MulHigh(bits, bits), size); }
uint64_t CubeLaw(uint64_t bits, uint64_t size) {
  return Below(MulHigh(MulHigh(bits, bits), bits), size);
}

template <typename Record>
Record MakeEdge(uint64_t target, uint64_t source) {
  using Id = typename Record::IdType;
  return {static_cast<Id>(target), static_cast<Id>(source)};
}

}  // namespace

RmatGraph::RmatGraph(uint64_t num_nodes, double a, double b, double c, uint64_t seed)
    : num_nodes_(num_nodes),
      levels_(num_nodes > 1 ? static_cast<int>(std::bit_width(num_nodes - 1)) : 0),
      seed_(seed),
      relabel_(num_nodes, seed, Purpose::kRelabel) {
  thresholds_ = {static_cast<uint32_t>(Scaled(a, kOne16)),
                 static_cast<uint32_t>(Scaled(a + b, kOne16)),
                 static_cast<uint32_t>(Scaled(a + b + c, kOne16))};
}

template <typename Record>
void RmatGraph::Edges(uint64_t first, std::span<Record> out) const {
  constexpr int kLevelsPerBlock = 8;  // 16 bits each
  for (size_t i = 0; i < out.size(); ++i) {
    uint64_t source = 0, target = 0;
    uint32_t draw = 0;
    do {  // again where the number of nodes is no power of two and an end lies beyond it
      source = target = 0;
      Block block{};
      for (int level = 0; level < levels_; ++level) {
        if (level % kLevelsPerBlock == 0)
          block = Draw(seed_, Purpose::kRmatEdge, first + i, draw++);
        const uint32_t pair = block[static_cast<size_t>(level % kLevelsPerBlock) / 2];
        const uint32_t bits = level % 2 == 0 ? pair & 0xFFFF : pair >> 16;
        // Quadrants a, b, c, d are (source bit, target bit) = 00, 01, 10, 11.
        const uint32_t quadrant =
            (bits >= thresholds_[0]) + (bits >= thresholds_[1]) + (bits >= thresholds_[2]);
        source = source << 1 | quadrant >> 1;
        target = target << 1 | (quadrant & 1);
      }
    } while (source >= num_nodes_ || target >= num_nodes_);
    out[i] = MakeEdge<Record>(relabel_(target), relabel_(source));
  }
}

CommunityGraph::CommunityGraph(uint64_t num_nodes, uint64_t communities, uint64_t classes,
                               double homophily, uint64_t seed)
    : num_nodes_(num_nodes),
      communities_(communities),
      classes_(classes),
      threshold_(Scaled(homophily, kOne32)),
      seed_(seed),
      relabel_(num_nodes, seed, Purpose::kRelabel) {}

template <typename Record>
void CommunityGraph::Edges(uint64_t first, std::span<Record> out) const {
  for (size_t i = 0; i < out.size(); ++i) {
    const Block ends = Draw(seed_, Purpose::kCommunityEdge, first + i, 0);
    const Block kind = Draw(seed_, Purpose::kCommunityEdge, first + i, 1);
    const uint64_t target = SquareLaw(Low64(ends), num_nodes_);
    uint64_t source = 0;
    if (kind[0] < threshold_) {
      const uint64_t community = target % communities_;
      const uint64_t members = (num_nodes_ - community + communities_ - 1) / communities_;
      source = SquareLaw(High64(ends), members) * communities_ + community;
    } else {
      source = CubeLaw(High64(ends), num_nodes_);
    }
    out[i] = MakeEdge<Record>(relabel_(target), relabel_(source));
  }
}

void CommunityGraph::Labels(uint64_t first, std::span<int64_t> out) const {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<int64_t>(relabel_.Inverse(first + i) % communities_ % classes_);
  }
}

void RandomLabels(uint64_t classes, uint64_t seed, uint64_t first, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<int64_t>(Below(Low64(Draw(seed, Purpose::kLabel, first + i)), classes));
  }
}

void RandomOrder(uint64_t num_nodes, uint64_t seed, uint64_t first, std::span<int64_t> out) {
  const random::Permutation<> order(num_nodes, seed, Purpose::kSplit);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int64_t>(order(first + i));
}

namespace {

// The sum of the four 16-bit numbers in 64 bits: mean 2 * 65535, variance (65536^2 - 1) / 3.
int32_t SumOf16(uint32_t low, uint32_t high) {
  return static_cast<int32_t>((low & 0xFFFF) + (low >> 16) + (high & 0xFFFF) + (high >> 16));
}

constexpr float kNoiseScale = 1.0F / 37837.2274F;

float Noise(uint32_t low, uint32_t high) {
  return static_cast<float>(SumOf16(low, high) - 2 * 65535) * kNoiseScale;
}

}  // namespace

void Features(uint64_t seed, double signal, uint64_t first, std::span<const int64_t> labels,
              size_t dim, std::span<float> out) {
  const auto strength = static_cast<float>(signal);
  for (size_t i = 0; i < labels.size(); ++i) {
    float* row = out.data() + i * dim;
    for (size_t d = 0; d < dim; d += 2) {
      const Block bits = Draw(seed, Purpose::kFeature, first + i, static_cast<uint32_t>(d / 2));
      row[d] = Noise(bits[0], bits[1]);
      if (d + 1 < dim) row[d + 1] = Noise(bits[2], bits[3]);
    }
    if (labels[i] < 0) continue;
    for (size_t d = 0; d < dim; d += 128) {
      const Block signs = Draw(seed, Purpose::kCentroid, static_cast<uint64_t>(labels[i]),
                               static_cast<uint32_t>(d / 128));
      for (size_t bit = 0; bit < 128 && d + bit < dim; ++bit) {
        const bool positive = (signs[bit / 32] >> (bit % 32) & 1) != 0;
        row[d + bit] += positive ? strength : -strength;
      }
    }
  }
}

template void RmatGraph::Edges(uint64_t, std::span<Edge<uint32_t>>) const;
template void RmatGraph::Edges(uint64_t, std::span<Edge<uint64_t>>) const;
template void CommunityGraph::Edges(uint64_t, std::span<Edge<uint32_t>>) const;
template void CommunityGraph::Edges(uint64_t, std::span<Edge<uint64_t>>) const;

}  // namespace outcrop::ingest
