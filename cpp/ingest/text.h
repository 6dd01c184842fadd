// Text: lines of an edge list -> source and target ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace outcrop::ingest {

// One edge per line: two ids, separated by blanks and tabs, or by one comma or semicolon with or
// without them; blanks may come first. Lines that are blank or begin with # or % are passed over.
// Further columns are ignored. Lines end with \n or \r\n.
enum class LineError {
  kNone,
  kTooFewColumns,
  kNegative,
  kNotANumber,
  kEmptyColumn,     // a comma or semicolon where an id should be: ",1,2", "1,,2"
  kTooLarge,        // an id of 2^63 or more
  kCarriageReturn,  // before the end of the line: text whose lines end with \r alone is one line
};

struct Parsed {
  size_t edges = 0;     // written
  size_t consumed = 0;  // bytes of whole lines that were taken
  size_t lines = 0;     // whole lines that were taken; on error, the bad one is the next
  LineError error = LineError::kNone;
};

// Takes whole lines until the text ends, the room is full, or a line is bad. An unfinished last
// line is left alone unless `final`.
Parsed ParseEdges(std::string_view text, bool final, std::span<int64_t> sources,
                  std::span<int64_t> targets);

}  // namespace outcrop::ingest
