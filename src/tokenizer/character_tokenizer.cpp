// Writes the tokenizer.json of a character vocabulary.
#include "tokenizer/character_tokenizer.h"

#include <algorithm>
#include <set>

#include "io/json.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

// `tokenizers` wants the name of an unknown token. As the vocabulary has no such entry, an unknown
// character is an error there as it is here.
constexpr const char* kUnknownToken = "<unk>";

void check(const CharacterVocabulary& vocabulary) {
  const std::set<std::string> special(vocabulary.special.begin(), vocabulary.special.end());
  std::set<std::string> seen;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    require(!token.empty() && utf8_valid_prefix(token) == token.size(),
            "token {}: '{}' is empty or not valid UTF-8", id, token);
    require(token != kUnknownToken, "token {}: '{}' is reserved", id, token);
    require(utf8_length(token, 0) == token.size() || special.contains(token),
            "token {}: '{}' is longer than one character and not special", id, token);
    require(seen.insert(token).second, "token {}: '{}' is there twice", id, token);
  }
  for (const std::string& token : special) {
    require(seen.contains(token), "special token '{}' is not in the vocabulary", token);
  }
}

Json tokenizer_json(const CharacterVocabulary& vocabulary) {
  Json vocab = Json::object();
  Json added = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    vocab[token] = id;
    if (std::find(vocabulary.special.begin(), vocabulary.special.end(), token) !=
        vocabulary.special.end()) {
      added.push_back({{"id", id},
                       {"content", token},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
  }
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"Regex", "[\\s\\S]"}}},
        {"behavior", "Isolated"},
        {"invert", false}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "Fuse"}}},
      {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", kUnknownToken}}},
  };
}

TokenizerFiles files_of(const CharacterVocabulary& vocabulary) {
  check(vocabulary);
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  if (vocabulary.eos) {
    config["eos_token"] = *vocabulary.eos;
  }
  if (vocabulary.pad) {
    config["pad_token"] = *vocabulary.pad;
  }
  return {{"tokenizer.json", tokenizer_json(vocabulary).dump(2) + "\n"},
          {"tokenizer_config.json", config.dump(2) + "\n"}};
}

}  // namespace

CharacterTokenizer::CharacterTokenizer(const CharacterVocabulary& vocabulary)
    : JsonTokenizer(files_of(vocabulary), "character tokenizer") {}

}  // namespace quads
