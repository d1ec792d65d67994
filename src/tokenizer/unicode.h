// Unicode as `tokenizers` sees it: properties of code points, lower case, normal forms.
#pragma once

#include <string>
#include <string_view>

namespace quads {

/// White_Space.
bool is_whitespace(char32_t code_point);
/// \w: letters, marks, decimal digits, connectors, joiners.
bool is_word(char32_t code_point);
/// The categories Nd, Nl and No.
bool is_numeric(char32_t code_point);
/// The category P, and the symbols among ASCII's punctuation.
bool is_punctuation(char32_t code_point);

/// Every code point in lower case by itself: a final sigma is not looked for. `text` is valid
/// UTF-8.
std::string lowercase(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// `text` (valid UTF-8) in a normal form.
std::string normal_form(std::string_view text, NormalForm form);

}  // namespace quads
