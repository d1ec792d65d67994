// What a Split or a Replace looks for: a text or a regular expression.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "tokenizer/regex.h"

namespace quads {

class Pattern {
 public:
  /// {"String": text} or {"Regex": pattern}.
  Pattern(const Json& json, const std::string& where);

  /// As Regex::find_all.
  std::vector<Span> find_all(std::string_view text) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace quads
