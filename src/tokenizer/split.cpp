// The behaviours of a split, as `tokenizers` has them.
#include "tokenizer/split.h"

#include <algorithm>

namespace quads {
namespace {

struct Part {
  Span span;
  bool delimiter;
};

std::vector<Part> parts_of(size_t size, const std::vector<Span>& matches, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t end = 0;
  for (const Span& match : matches) {
    if (match.begin != end) {
      parts.push_back({{end, match.begin}, invert});
    }
    parts.push_back({match, !invert});
    end = match.end;
  }
  if (end != size) {
    parts.push_back({{end, size}, invert});
  }
  return parts;
}

// Joins a delimiter with its neighbour in front, in the order of the vector; of several delimiters
// in a row only the first has such a neighbour.
std::vector<Span> merge_delimiters(const std::vector<Part>& parts) {
  std::vector<Span> spans;
  bool after_delimiter = false;
  for (const auto& [span, delimiter] : parts) {
    if (delimiter && !after_delimiter && !spans.empty()) {
      spans.back() = {std::min(spans.back().begin, span.begin),
                      std::max(spans.back().end, span.end)};
    } else {
      spans.push_back(span);
    }
    after_delimiter = delimiter;
  }
  return spans;
}

std::vector<Span> join_alike(const std::vector<Part>& parts) {
  std::vector<Span> spans;
  bool previous = false;
  for (const auto& [span, delimiter] : parts) {
    if (delimiter == previous && !spans.empty()) {
      spans.back().end = span.end;
    } else {
      spans.push_back(span);
    }
    previous = delimiter;
  }
  return spans;
}

}  // namespace

SplitBehavior split_behavior(const std::string& name, const std::string& where) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  fail(
      "{}: behavior '{}' is not supported (Removed, Isolated, MergedWithPrevious, MergedWithNext, "
      "Contiguous are)",
      where, name);
}

void split_piece(const Piece& piece, const std::vector<Span>& matches, SplitBehavior behavior,
                 bool invert, std::vector<Piece>& out) {
  std::vector<Part> parts = parts_of(piece.text.size(), matches, invert);
  std::vector<Span> spans;
  switch (behavior) {
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      for (const auto& [span, delimiter] : parts) {
        if (!delimiter || behavior == SplitBehavior::kIsolated) {
          spans.push_back(span);
        }
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      spans = merge_delimiters(parts);
      break;
    case SplitBehavior::kMergedWithNext:
      std::reverse(parts.begin(), parts.end());
      spans = merge_delimiters(parts);
      std::reverse(spans.begin(), spans.end());
      break;
    case SplitBehavior::kContiguous:
      spans = join_alike(parts);
      break;
  }
  for (const Span& span : spans) {
    if (span.begin != span.end) {
      out.push_back(piece.part(span.begin, span.end));
    }
  }
}

}  // namespace quads
