// A tokenizer with one token for each character, which a built-in task defines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tokenizer/json_tokenizer.h"

namespace quads {

/// The tokens; a token's id is its index. A token is one character (a Unicode code point), except
/// `special` ones, which may be any text ("<pad>") and are matched before characters, the longest
/// first.
struct CharacterVocabulary {
  std::vector<std::string> tokens{};
  std::vector<std::string> special{};  // those of `tokens` to match as a whole
  std::optional<std::string> eos{};    // one of `tokens`
  std::optional<std::string> pad{};    // one of `tokens`
};

/// A tokenizer.json of the WordLevel model that is split between all characters. A character
/// without a token is an Error, here and for `tokenizers`.
class CharacterTokenizer : public JsonTokenizer {
 public:
  /// Error for a token twice, empty or not valid UTF-8, a longer token that is not special, or an
  /// eos or pad that is not a token.
  explicit CharacterTokenizer(const CharacterVocabulary& vocabulary);
};

}  // namespace quads
