// Reads a pattern and searches for it.
#include "tokenizer/pattern.h"

#include <cstring>

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
  for (size_t from = 0;;) {
    // Takes no longer where a text nearly holds a long pattern all over, unlike find().
    const void* found =
        memmem(text.data() + from, text.size() - from, literal_.data(), literal_.size());
    if (found == nullptr) {
      return matches;
    }
    const auto begin = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    from = begin + literal_.size();
    matches.push_back({begin, from});
  }
}

}  // namespace quads
