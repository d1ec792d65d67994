// The character tokenizer and its tokenizer.json.
#include "io/character_tokenizer.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "io/utf8.h"

namespace quads {
namespace {

// `tokenizers` wants the name of an unknown token. As the vocabulary has no such entry, an unknown
// character is an error there as it is here.
constexpr const char* kUnknownToken = "<unk>";

bool is_character(std::string_view token) {
  return !token.empty() && utf8_length(token, 0) == token.size();
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    if (length == 0) {
      return false;
    }
    i += length;
  }
  return true;
}

void require_absent(const Json& json, const char* key, const std::string& where) {
  const auto value = find_key<Json>(json, key, where);
  require(!value, "{}: {} {} is not supported", where, key, value ? json_excerpt(*value) : "");
}

// transformers adds a post-processor even if there is nothing to add: a template of the text alone.
void check_post_processor(const Json& json, const std::string& where) {
  const auto processor = find_key<Json>(json, "post_processor", where);
  const Json text_alone = Json::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}});
  require(!processor ||
              (processor->is_object() && processor->value("type", Json()) == "TemplateProcessing" &&
               processor->value("single", Json()) == text_alone),
          "{}: post_processor {} is not supported", where,
          processor ? json_excerpt(*processor) : "");
}

// The components of a character tokenizer, exactly.
void check_components(const Json& json, const std::vector<std::string>& tokens,
                      const std::string& where) {
  require(get<std::string>(json, "version", where) == "1.0", "{}: version {} is not 1.0", where,
          json_excerpt(json["version"]));
  for (const char* key : {"truncation", "padding", "normalizer"}) {
    require_absent(json, key, where);
  }
  check_post_processor(json, where);
  const auto split = get<Json>(json, "pre_tokenizer", where);
  const std::string split_where = where + ": pre_tokenizer";
  const auto type = get<std::string>(split, "type", split_where);
  require(type == "Split", "{}: type '{}' is not supported, only 'Split' is", split_where, type);
  const auto behavior = get<std::string>(split, "behavior", split_where);
  require(behavior == "Isolated", "{}: behavior '{}' is not supported, only 'Isolated' is",
          split_where, behavior);
  require(!get_or(split, "invert", false, split_where), "{}: invert is not supported", split_where);
  const auto pattern = get<Json>(split, "pattern", split_where);
  require(pattern == Json{{"String", ""}} || pattern == Json{{"Regex", ""}} ||
              pattern == Json{{"Regex", "."}} || pattern == Json{{"Regex", "[\\s\\S]"}},
          "{}: pattern {} is not supported, only \"\", \".\" and \"[\\s\\S]\" are", split_where,
          json_excerpt(pattern));
  // "." does not match newlines, so a run of them would be one piece.
  require(pattern != Json{{"Regex", "."}} ||
              std::find(tokens.begin(), tokens.end(), "\n") == tokens.end(),
          "{}: pattern \".\" does not split newlines, which the vocabulary has", split_where);
  const auto decoder = get<Json>(json, "decoder", where);
  const auto decoder_type = get<std::string>(decoder, "type", where + ": decoder");
  require(decoder_type == "Fuse", "{}: decoder type '{}' is not supported, only 'Fuse' is", where,
          decoder_type);
}

// Adds `token` under `id` to a list that must end up without holes.
void place(std::vector<std::string>& tokens, std::vector<bool>& taken, const std::string& token,
           int64_t id, const std::string& where) {
  require(id >= 0 && id < static_cast<int64_t>(tokens.size()),
          "{}: token '{}' has id {}, but {} tokens need the ids 0..{}", where, token, id,
          tokens.size(), tokens.size() - 1);
  const auto index = static_cast<size_t>(id);
  require(!taken[index], "{}: tokens '{}' and '{}' have the same id {}", where, tokens[index],
          token, id);
  taken[index] = true;
  tokens[index] = token;
}

}  // namespace

CharacterVocabulary character_vocabulary_from_json(const Json& json, const SpecialTokens& special,
                                                   const std::string& where) {
  const auto model = get<Json>(json, "model", where);
  const auto vocab = get<Json>(model, "vocab", where + ": model");
  require(vocab.is_object(), "{}: model: 'vocab' is not an object", where);
  const auto unknown = get_or<std::string>(model, "unk_token", kUnknownToken, where + ": model");
  require(!vocab.contains(unknown),
          "{}: the vocabulary has the unknown token '{}', which is not "
          "supported: a character without a token is an error",
          where, unknown);

  const auto added = get_or<Json>(json, "added_tokens", Json::array(), where);
  require(added.is_array(), "{}: 'added_tokens' is not an array", where);
  CharacterVocabulary vocabulary;
  size_t num_tokens = vocab.size();
  for (const Json& entry : added) {
    const std::string what = where + ": added_tokens";
    const auto content = get<std::string>(entry, "content", what);
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      require(!get_or(entry, flag, false, what), "{}: token '{}': {} is not supported", what,
              content, flag);
    }
    const auto id = get<int64_t>(entry, "id", what);
    const auto in_vocab = find_key<int64_t>(vocab, content, where + ": model: vocab");
    require(!in_vocab || *in_vocab == id, "{}: token '{}' has id {} here but {} in the vocabulary",
            what, content, id, in_vocab.value_or(0));
    num_tokens += in_vocab ? 0 : 1;
    vocabulary.special.push_back(content);
  }
  vocabulary.tokens.resize(num_tokens);
  std::vector<bool> taken(num_tokens);
  for (const auto& [token, id] : vocab.items()) {
    place(vocabulary.tokens, taken, token,
          json_to<int64_t>(id, fmt::format("{}: token '{}'", where, token)), where);
  }
  for (const Json& entry : added) {
    const auto content = entry["content"].get<std::string>();
    if (!vocab.contains(content)) {
      place(vocabulary.tokens, taken, content, entry["id"].get<int64_t>(), where);
    }
  }
  check_components(json, vocabulary.tokens, where);
  vocabulary.eos = special.eos;
  vocabulary.pad = special.pad;
  return vocabulary;
}

Json character_vocabulary_to_json(const CharacterVocabulary& vocabulary) {
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

CharacterTokenizer::CharacterTokenizer(CharacterVocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), special_(vocabulary_.special) {
  const std::set<std::string> special(special_.begin(), special_.end());
  for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    const std::string& token = vocabulary_.tokens[id];
    require(!token.empty() && is_utf8(token), "token {}: '{}' is empty or not valid UTF-8", id,
            token);
    require(token != kUnknownToken, "token {}: '{}' is reserved", id, token);
    require(is_character(token) || special.contains(token),
            "token {}: '{}' is longer than one character and not special", id, token);
    require(ids_.emplace(token, static_cast<int32_t>(id)).second, "token {}: '{}' is there twice",
            id, token);
  }
  for (const std::string& token : special_) {
    require(ids_.contains(token), "special token '{}' is not in the vocabulary", token);
  }
  std::sort(special_.begin(), special_.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  eos_id_ = id_of(vocabulary_.eos, "eos");
  pad_id_ = id_of(vocabulary_.pad, "pad");
}

std::optional<int32_t> CharacterTokenizer::id_of(const std::optional<std::string>& token,
                                                 const char* role) const {
  if (!token) {
    return std::nullopt;
  }
  const auto it = ids_.find(*token);
  require(it != ids_.end(), "{} token '{}' is not in the vocabulary", role, *token);
  return it->second;
}

std::vector<int32_t> CharacterTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const auto special = std::find_if(special_.begin(), special_.end(),
                                      [&](const auto& token) { return rest.starts_with(token); });
    const size_t length = special != special_.end() ? special->size() : utf8_length(text, i);
    require(length > 0, "byte {} of the text to encode is not valid UTF-8", i);
    const auto it = ids_.find(std::string(rest.substr(0, length)));
    require(it != ids_.end(), "character '{}' at byte {} of the text to encode has no token",
            rest.substr(0, length), i);
    ids.push_back(it->second);
    i += length;
  }
  return ids;
}

std::string CharacterTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    require(ids[i] >= 0, "token id {} at position {} is negative", ids[i], i);
    text += ids[i] < vocab_size() ? vocabulary_.tokens[static_cast<size_t>(ids[i])] : "\uFFFD";
  }
  return text;
}

void CharacterTokenizer::save(const std::filesystem::path& directory) const {
  write_json_file(directory / "tokenizer.json", character_vocabulary_to_json(vocabulary_));
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  if (vocabulary_.eos) {
    config["eos_token"] = *vocabulary_.eos;
  }
  if (vocabulary_.pad) {
    config["pad_token"] = *vocabulary_.pad;
  }
  write_json_file(directory / "tokenizer_config.json", config);
}

}  // namespace quads
