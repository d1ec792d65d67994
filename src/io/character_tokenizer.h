// A tokenizer with one token for each character, stored as a tokenizer.json of the WordLevel model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/json.h"
#include "io/tokenizer.h"

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

/// The names of end and padding token that stand beside a tokenizer.json.
struct SpecialTokens {
  std::optional<std::string> eos{};
  std::optional<std::string> pad{};
};

/// Reads a tokenizer.json of the WordLevel model with a pre-tokenizer that splits between all
/// characters (Split, Isolated, pattern "", "." or "[\s\S]") and the Fuse decoder. Error for
/// anything else: other components, ids that are not 0..n-1, an unknown-token entry, added tokens
/// that strip or match whole words only.
CharacterVocabulary character_vocabulary_from_json(const Json& json, const SpecialTokens& special,
                                                   const std::string& where);

/// The tokenizer.json that the function above reads.
Json character_vocabulary_to_json(const CharacterVocabulary& vocabulary);

class CharacterTokenizer : public Tokenizer {
 public:
  /// Error for a token twice, empty or not valid UTF-8, a longer token that is not special, or an
  /// eos or pad that is not a token.
  explicit CharacterTokenizer(CharacterVocabulary vocabulary);

  /// Error for a character that is not in the vocabulary, naming it and where it stands.
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(vocabulary_.tokens.size()); }
  std::optional<int32_t> eos_id() const override { return eos_id_; }
  std::optional<int32_t> pad_id() const override { return pad_id_; }
  void save(const std::filesystem::path& directory) const override;

  const CharacterVocabulary& vocabulary() const { return vocabulary_; }

 private:
  std::optional<int32_t> id_of(const std::optional<std::string>& token, const char* role) const;

  CharacterVocabulary vocabulary_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::string> special_;  // longest first
  std::optional<int32_t> eos_id_;
  std::optional<int32_t> pad_id_;
};

}  // namespace quads
