#include "ingest/pack.h"

#include "ingest/edge.h"

namespace outcrop::ingest {
namespace {

template <typename Record>
Record Make(int64_t target, int64_t source, [[maybe_unused]] int64_t number) {
  using Id = typename Record::IdType;
  if constexpr (Record::kNumbered) {
    return {static_cast<Id>(target), static_cast<Id>(source), number};
  } else {
    return {static_cast<Id>(target), static_cast<Id>(source)};
  }
}

}  // namespace

template <typename Record>
Packed Pack(std::span<const int64_t> sources, std::span<const int64_t> targets,
            const PackOptions& options, int64_t first_number, std::span<Record> out) {
  const auto limit = static_cast<uint64_t>(options.num_nodes);
  Packed packed;
  for (; packed.edges < sources.size() && packed.records + 2 <= out.size(); ++packed.edges) {
    const int64_t source = sources[packed.edges], target = targets[packed.edges];
    if (static_cast<uint64_t>(source) >= limit || static_cast<uint64_t>(target) >= limit) {
      packed.bad_id = true;  // negative ids are huge when unsigned
      break;
    }
    if (source == target && options.drop_loops) continue;
    const int64_t number = first_number + static_cast<int64_t>(packed.edges);
    out[packed.records++] = Make<Record>(target, source, number);
    if (options.undirected && source != target) {
      out[packed.records++] = Make<Record>(source, target, number);
    }
  }
  return packed;
}

template Packed Pack(std::span<const int64_t>, std::span<const int64_t>, const PackOptions&,
                     int64_t, std::span<Edge<uint32_t>>);
template Packed Pack(std::span<const int64_t>, std::span<const int64_t>, const PackOptions&,
                     int64_t, std::span<Edge<uint64_t>>);
template Packed Pack(std::span<const int64_t>, std::span<const int64_t>, const PackOptions&,
                     int64_t, std::span<NumberedEdge<uint32_t>>);
template Packed Pack(std::span<const int64_t>, std::span<const int64_t>, const PackOptions&,
                     int64_t, std::span<NumberedEdge<uint64_t>>);

}  // namespace outcrop::ingest
