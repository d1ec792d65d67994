// Regular expressions of tokenizer.json, which are Oniguruma's, in the syntax of PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace quads {

/// The PCRE2 pattern (for PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE, newline LF) that matches what
/// Oniguruma's `pattern` matches, with the Unicode data that `tokenizers` has. Classes like \s and
/// \w, which the two define differently, become explicit sets. Error, naming `where`, the construct
/// and its position, for what has no such translation (nested classes, calls, absent operators, a
/// negated property within a class, ...).
std::string translate_regex(std::string_view pattern, const std::string& where);

}  // namespace quads
