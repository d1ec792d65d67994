// Properties from tables, normal forms from utf8proc where `tokenizers` knows the characters.
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "tokenizer/unicode_tables.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

bool contains(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), code_point,
                       [](char32_t c, const CodePointRange& range) { return c < range.first; });
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// utf8proc's own ordering of combining marks is an insertion sort: a long run of them would take
// quadratic time. Its composition is linear.
void append_normal_form(std::string& result, std::string_view text, bool composed, int options) {
  std::vector<utf8proc_int32_t> decomposed;
  decomposed.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size();) {
    const auto [c, length] = utf8_code_point(text, i);
    i += length;
    constexpr utf8proc_ssize_t kMaxDecomposition = 32;  // the longest has 18
    std::array<utf8proc_int32_t, kMaxDecomposition> parts;
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c), parts.data(), kMaxDecomposition,
        static_cast<utf8proc_option_t>(options | UTF8PROC_DECOMPOSE), &boundary);
    require(count >= 0 && count <= kMaxDecomposition, "Unicode decomposition of U+{:04X} failed",
            static_cast<uint32_t>(c));
    decomposed.insert(decomposed.end(), parts.begin(), parts.begin() + count);
  }
  for (auto begin = decomposed.begin(); begin != decomposed.end();) {
    begin = std::find_if(begin, decomposed.end(), combining_class);
    const auto end = std::find_if_not(begin, decomposed.end(), combining_class);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
  auto size = static_cast<utf8proc_ssize_t>(decomposed.size());
  if (composed && size > 0) {
    size = utf8proc_normalize_utf32(
        decomposed.data(), size,
        static_cast<utf8proc_option_t>(options | UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  }
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    utf8_append(result, static_cast<char32_t>(decomposed[static_cast<size_t>(i)]));
  }
}

}  // namespace

bool is_whitespace(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word(char32_t c) { return contains(word_ranges(), c); }
bool is_numeric(char32_t c) { return contains(numeric_ranges(), c); }
bool is_punctuation(char32_t c) { return contains(punctuation_ranges(), c); }

std::string lowercase(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const auto [c, length] = utf8_code_point(text, i);
    i += length;
    const auto pairs = lowercase_pairs();
    const auto pair =
        std::lower_bound(pairs.begin(), pairs.end(), c,
                         [](const LowercasePair& p, char32_t value) { return p.upper < value; });
    if (c < 0x80) {
      result += static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    } else if (c == 0x130) {  // the only one that becomes two
      result += "i\u0307";
    } else if (pair != pairs.end() && pair->upper == c) {
      utf8_append(result, pair->lower);
    } else {
      utf8_append(result,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return result;
}

std::string normal_form(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return static_cast<signed char>(c) >= 0; })) {
    return std::string(text);
  }
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const int options = compatible ? UTF8PROC_COMPAT : 0;
  std::string result;
  result.reserve(text.size());
  size_t begin = 0;  // of what stands after the last inert character
  for (size_t i = 0; i < text.size();) {
    const auto [c, length] = utf8_code_point(text, i);
    if (c >= 0x80 && contains(inert_ranges(), c)) {
      append_normal_form(result, text.substr(begin, i - begin), composed, options);
      result += text.substr(i, length);
      begin = i + length;
    }
    i += length;
  }
  append_normal_form(result, text.substr(begin), composed, options);
  return result;
}

}  // namespace quads
