// Where the Unicode data of `tokenizers` differs from that of PCRE2 and utf8proc, as sorted ranges
// of code points.
#pragma once

#include <span>

namespace quads {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

/// Code points that have a property for `tokenizers` and that a PCRE2 of Unicode 14 does not know.
/// `property` is a general category ("Lo"), a script ("Han") or "Word" (what \w has beyond the
/// categories L, M, Nd, Nl and Pc).
struct PropertyRange {
  const char* property;
  CodePointRange range;
};

struct LowercasePair {
  char32_t upper;
  char32_t lower;
};

/// All of \w of Rust's regex crate, char::is_numeric, and Unicode punctuation with that of ASCII.
std::span<const CodePointRange> word_ranges();
std::span<const CodePointRange> numeric_ranges();
std::span<const CodePointRange> punctuation_ranges();

/// What Unicode normalisation leaves where it stands, though newer data would change it.
std::span<const CodePointRange> inert_ranges();

std::span<const PropertyRange> added_property_ranges();

/// Beside utf8proc's.
std::span<const LowercasePair> lowercase_pairs();

}  // namespace quads
