// Reads a pattern and searches for it.
#include "tokenizer/pattern.h"

namespace quads {

Pattern::Pattern(const Json& json, const std::string& where) {
  const auto literal = find_key<std::string>(json, "String", where);
  const auto pattern = find_key<std::string>(json, "Regex", where);
  require(json.size() == 1 && (literal || pattern),
          "{}: {} is neither {{\"String\": ...}} nor {{\"Regex\": ...}}", where,
          json_excerpt(json));
  if (pattern) {
    regex_.emplace(*pattern, where);
  } else if (literal->empty()) {
    regex_.emplace("", where);  // matches between all characters
  } else {
    literal_ = *literal;
  }
}

std::vector<Span> Pattern::find_all(std::string_view text) const {
  if (regex_) {
    return regex_->find_all(text);
  }
  std::vector<Span> matches;
  for (size_t i = text.find(literal_); i != std::string_view::npos;
       i = text.find(literal_, i + literal_.size())) {
    matches.push_back({i, i + literal_.size()});
  }
  return matches;
}

}  // namespace quads
