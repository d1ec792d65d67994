// Small helpers for texts.
#pragma once

#include <string_view>

namespace quads {

/// White space as C's isspace has it in the "C" locale.
inline constexpr std::string_view kWhiteSpace = " \t\r\n\f\v";

/// `text` without the characters of `white` at both ends.
inline std::string_view trimmed(std::string_view text, std::string_view white = kWhiteSpace) {
  const size_t first = text.find_first_not_of(white);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(white) - first + 1);
}

}  // namespace quads
