// Tokens that are found in the text before anything else is done with it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/json.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/piece.h"
#include "tokenizer/vocabulary.h"

namespace quads {

struct AddedToken {
  int32_t id;
  std::string content;
  std::string pattern;       // what is looked for: the content, normalized if `normalized`
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes the spaces in front along
  bool rstrip = false;       // takes the spaces behind along
  bool normalized = false;   // looked for after the normalizer
  bool special = false;
};

/// Finds which of a set of texts begins at a position, the longest one.
class TokenTrie {
 public:
  /// `text` is not empty. False if it is there already.
  bool insert(std::string_view text, int32_t value);
  /// The value of the longest text at `position` and its length; -1 if there is none.
  std::pair<int32_t, size_t> longest(std::string_view text, size_t position) const;

 private:
  int32_t child(int32_t node, unsigned char byte) const;

  struct Node {
    int32_t value = -1;
    std::vector<std::pair<unsigned char, int32_t>> children{};
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<int32_t, 256> first_ = make_empty();
  static std::array<int32_t, 256> make_empty() {
    std::array<int32_t, 256> empty;
    empty.fill(-1);
    return empty;
  }
};

class AddedTokens {
 public:
  /// Of tokenizer.json's "added_tokens"; `normalizer` may be null. Error, naming `where`, for
  /// missing or unknown keys, an empty, repeated or very long token, and for an id that is not the
  /// one by which `tokenizers` knows the token: that of the vocabulary, or the next one free.
  AddedTokens(const Json& json, const Vocabulary& vocabulary, const Normalizer* normalizer,
              const std::string& where);

  /// Appends the parts of `piece`, none empty, to `out`: added tokens, with their ids, and text
  /// between them. Looks for the tokens with `normalized` or for those without. Special tokens are
  /// passed over if `special_as_text`. Takes time in proportion to the text and the longest token.
  void split(const Piece& piece, bool normalized, bool special_as_text,
             std::vector<Piece>& out) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// The id of the token with this content, if there is one.
  std::optional<int32_t> find(const std::string& content) const;

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, int32_t> ids_;  // by content
  std::array<TokenTrie, 2> tries_;  // of those looked for before and after the normalizer
};

}  // namespace quads
