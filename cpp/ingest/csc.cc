#include "ingest/csc.h"

#include "ingest/edge.h"

namespace outcrop::ingest {

bool CscWriter::OffsetsUpTo(int64_t node, std::span<int64_t> indptr, size_t* written) {
  while (next_offset_ <= node) {
    if (*written == indptr.size()) return false;
    indptr[(*written)++] = num_edges_;
    ++next_offset_;
  }
  return true;
}

template <typename Record, typename Index>
CscWriter::Wrote CscWriter::Write(std::span<const Record> records, std::span<Index> indices,
                                  std::span<int64_t> numbers, std::span<int64_t> indptr) {
  Wrote wrote;
  for (const Record& record : records) {
    if (!OffsetsUpTo(static_cast<int64_t>(record.target), indptr, &wrote.offsets)) break;
    indices[wrote.records] = static_cast<Index>(record.source);
    if constexpr (Record::kNumbered) {
      if (!numbers.empty()) numbers[wrote.records] = record.number;
    }
    ++wrote.records;
    ++num_edges_;
  }
  return wrote;
}

size_t CscWriter::Finish(std::span<int64_t> indptr) {
  size_t written = 0;
  OffsetsUpTo(num_nodes_, indptr, &written);
  return written;
}

#define OUTCROP_WRITE(RECORD, INDEX)                                                    \
  template CscWriter::Wrote CscWriter::Write(std::span<const RECORD>, std::span<INDEX>, \
                                             std::span<int64_t>, std::span<int64_t>)
OUTCROP_WRITE(Edge<uint32_t>, int32_t);
OUTCROP_WRITE(Edge<uint32_t>, int64_t);
OUTCROP_WRITE(Edge<uint64_t>, int32_t);
OUTCROP_WRITE(Edge<uint64_t>, int64_t);
OUTCROP_WRITE(NumberedEdge<uint32_t>, int32_t);
OUTCROP_WRITE(NumberedEdge<uint32_t>, int64_t);
OUTCROP_WRITE(NumberedEdge<uint64_t>, int32_t);
OUTCROP_WRITE(NumberedEdge<uint64_t>, int64_t);
#undef OUTCROP_WRITE

}  // namespace outcrop::ingest
