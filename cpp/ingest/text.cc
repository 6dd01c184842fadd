#include "ingest/text.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace outcrop::ingest {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t'; }
bool IsMark(char c) { return c == ',' || c == ';'; }
bool IsSeparator(char c) { return IsBlank(c) || IsMark(c); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

const char* SkipBlanks(const char* at, const char* end) {
  while (at < end && IsBlank(*at)) ++at;
  return at;
}

// To the next column: past blanks, with at most one mark among them.
const char* SkipSeparator(const char* at, const char* end) {
  at = SkipBlanks(at, end);
  return at < end && IsMark(*at) ? SkipBlanks(at + 1, end) : at;
}

// Where the line ends without the \r of \r\n.
const char* TrimReturns(const char* line, const char* end) {
  while (end > line && end[-1] == '\r') --end;
  return end;
}

// Parses one id and moves past it.
LineError ParseId(const char** at, const char* end, int64_t* id) {
  const char* p = *at;
  if (p == end) return LineError::kTooFewColumns;
  if (IsMark(*p)) return LineError::kEmptyColumn;
  if (*p == '-' && p + 1 < end && IsDigit(p[1])) return LineError::kNegative;
  if (!IsDigit(*p)) return LineError::kNotANumber;
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  uint64_t value = 0;
  for (; p < end && IsDigit(*p); ++p) {
    const auto digit = static_cast<uint64_t>(*p - '0');
    if (value > (kMost - digit) / 10) return LineError::kTooLarge;
    value = value * 10 + digit;
  }
  if (p < end && !IsSeparator(*p)) return LineError::kNotANumber;
  *id = static_cast<int64_t>(value);
  *at = p;
  return LineError::kNone;
}

}  // namespace

Parsed ParseEdges(std::string_view text, bool final, std::span<int64_t> sources,
                  std::span<int64_t> targets) {
  Parsed parsed;
  const size_t room = std::min(sources.size(), targets.size());
  const char* const end = text.data() + text.size();
  const char* line = text.data();
  while (line < end && parsed.edges < room) {
    const auto* newline =
        static_cast<const char*>(std::memchr(line, '\n', static_cast<size_t>(end - line)));
    if (newline == nullptr && !final) break;
    const char* const line_end = TrimReturns(line, newline == nullptr ? end : newline);
    if (std::find(line, line_end, '\r') != line_end) {
      parsed.error = LineError::kCarriageReturn;
      break;
    }
    const char* at = SkipBlanks(line, line_end);
    if (at < line_end && *at != '#' && *at != '%') {
      int64_t source = 0, target = 0;
      parsed.error = ParseId(&at, line_end, &source);
      if (parsed.error == LineError::kNone) {
        at = SkipSeparator(at, line_end);
        parsed.error = ParseId(&at, line_end, &target);
      }
      if (parsed.error != LineError::kNone) break;
      sources[parsed.edges] = source;
      targets[parsed.edges++] = target;
    }
    ++parsed.lines;
    line = newline == nullptr ? end : newline + 1;
    parsed.consumed = static_cast<size_t>(line - text.data());
  }
  return parsed;
}

}  // namespace outcrop::ingest
