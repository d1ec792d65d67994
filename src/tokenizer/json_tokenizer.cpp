// Reads the components of a tokenizer.json and runs them in order.
#include "tokenizer/json_tokenizer.h"

#include <algorithm>

#include "io/atomic_file.h"
#include "io/json.h"
#include "tokenizer/component.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

constexpr const char* kTokenizerFile = "tokenizer.json";
constexpr const char* kConfigFile = "tokenizer_config.json";

// A special token in tokenizer_config.json is a string, or an object with its text as 'content'.
std::optional<std::string> special_token(const Json& config, const std::string& key,
                                         const std::string& where) {
  const auto value = find_key<Json>(config, key, where);
  if (!value) {
    return std::nullopt;
  }
  const std::string what = fmt::format("{}: '{}'", where, key);
  return value->is_object() ? get<std::string>(*value, "content", what)
                            : json_to<std::string>(*value, what);
}

}  // namespace

JsonTokenizer::JsonTokenizer(TokenizerFiles files, const std::string& where)
    : files_(std::move(files)) {
  require(files_.contains(kTokenizerFile), "{}: there is no {}", where, kTokenizerFile);
  read_tokenizer((std::filesystem::path(where) / kTokenizerFile).string());
  if (files_.contains(kConfigFile)) {
    read_config((std::filesystem::path(where) / kConfigFile).string());
  } else {
    const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"clean_up_tokenization_spaces", false}};
    files_[kConfigFile] = config.dump(2) + "\n";
  }
}

void JsonTokenizer::read_tokenizer(const std::string& where) {
  const Json json = parse_json(files_[kTokenizerFile], where);
  require(json.is_object(), "{}: {} is not an object", where, json_excerpt(json));
  check_options(json,
                {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                 "post_processor", "decoder", "model"},
                where);
  const auto version = get<std::string>(json, "version", where);
  require(version == "1.0", "{}: version '{}' is not 1.0", where, version);
  const Json none;
  const auto component = [&](const char* key) -> const Json& {
    const auto it = json.find(key);
    return it == json.end() ? none : *it;
  };
  for (const char* key : {"truncation", "padding"}) {
    require(component(key).is_null(), "{}: {} {} is not supported", where, key,
            json_excerpt(component(key)));
  }
  if (!component("normalizer").is_null()) {
    normalizer_ = make_normalizer(component("normalizer"), where + ": normalizer");
  }
  if (!component("pre_tokenizer").is_null()) {
    pre_tokenizer_ = make_pre_tokenizer(component("pre_tokenizer"), where + ": pre_tokenizer");
  }
  decoder_ = make_decoder(component("decoder"), where + ": decoder");
  model_ = make_model(member(json, "model", where), where + ": model");
  const Json no_tokens = Json::array();
  added_ = std::make_unique<AddedTokens>(
      component("added_tokens").is_null() ? no_tokens : component("added_tokens"),
      model_->vocabulary(), normalizer_.get(), where);
  num_ids_ = model_->vocabulary().size();
  for (const AddedToken& token : added_->tokens()) {
    added_texts_[token.id] = token.pattern;
    num_ids_ = std::max(num_ids_, token.id + 1);
  }
  post_processor_ = std::make_unique<PostProcessor>(component("post_processor"), num_ids_,
                                                    where + ": post_processor");
}

void JsonTokenizer::read_config(const std::string& where) {
  const Json config = parse_json(files_[kConfigFile], where);
  const auto id_of = [&](const char* key, const char* role) -> std::optional<int32_t> {
    const std::optional<std::string> token = special_token(config, key, where);
    const std::optional<int32_t> id = token ? find_id(*token) : std::nullopt;
    require(!token || id, "{}: {} token '{}' is not in the vocabulary", where, role,
            token.value_or(""));
    return id;
  };
  eos_id_ = id_of("eos_token", "eos");
  pad_id_ = id_of("pad_token", "pad");
  // transformers adds what is listed here and not in tokenizer.json.
  const Json listed = get_or(config, "added_tokens_decoder", Json::object(), where);
  for (const auto& [key, entry] : listed.items()) {
    const auto content = get<std::string>(entry, "content", where + ": added_tokens_decoder");
    const std::optional<int32_t> id = find_id(content);
    require(id && key == std::to_string(*id),
            "{}: added_tokens_decoder: token '{}' has id {} here but {} in {}", where, content, key,
            id ? std::to_string(*id) : "none", kTokenizerFile);
  }
}

std::optional<int32_t> JsonTokenizer::find_id(const std::string& token) const {
  const std::optional<int32_t> added = added_->find(token);
  return added ? added : model_->vocabulary().find(token);
}

std::vector<int32_t> JsonTokenizer::encode(std::string_view text,
                                           const EncodeOptions& options) const {
  const size_t valid = utf8_valid_prefix(text);
  require(valid == text.size(), "byte {} of the text to encode is not valid UTF-8", valid);
  std::vector<int32_t> ids;
  std::vector<Piece> sections;  // of the original text
  added_->split({std::string(text), 0, true, -1}, false, options.special_tokens_as_text, sections);
  std::vector<Piece> normalized;
  std::vector<Piece> pieces;
  size_t bytes = 0;  // normalized
  for (Piece& section : sections) {
    normalized.clear();
    if (section.id >= 0) {
      normalized.push_back(std::move(section));
    } else {
      if (normalizer_) {
        normalizer_->normalize(section);
        bytes += section.text.size();
        require(bytes <= kMostGrowth * text.size() + kMostNormalizedBytes,
                "the tokenizer's normalizer makes {} bytes and more of a text of {}", bytes,
                text.size());
      }
      added_->split(section, true, options.special_tokens_as_text, normalized);
    }
    for (Piece& part : normalized) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      pieces.clear();
      if (pre_tokenizer_) {
        pre_tokenizer_->split(std::move(part), pieces);
      } else {
        pieces.push_back(std::move(part));
      }
      for (const Piece& piece : pieces) {
        model_->encode(piece, ids);
      }
    }
  }
  return post_processor_->process(std::move(ids), options.add_special_tokens);
}

class JsonTokenizer::Stream : public TokenStream {
 public:
  explicit Stream(const JsonTokenizer& tokenizer) : tokenizer_(tokenizer) {
    tokenizer.decoder_->append_steps(steps_);
    for (size_t i = 0; i < steps_.size(); ++i) {
      steps_[i]->set_next(i + 1 < steps_.size() ? steps_[i + 1].get() : &end_);
    }
  }

  std::string push(int32_t id) override {
    require(id >= 0, "token id {} at position {} is negative", id, position_);
    ++position_;
    DecodeStep& first = steps_.empty() ? end_ : *steps_.front();
    first.push(tokenizer_.text_of(id), true);
    return std::exchange(end_.text, {});
  }

  std::string finish() override {
    for (const auto& step : steps_) {
      step->finish();
    }
    return std::exchange(end_.text, {});
  }

 private:
  struct End : DecodeStep {
    void push(std::string_view part, bool /*ends*/) override { text += part; }
    void finish() override {}
    std::string text;
  };
  const JsonTokenizer& tokenizer_;
  std::vector<std::unique_ptr<DecodeStep>> steps_;
  End end_;
  size_t position_ = 0;
};

const std::string& JsonTokenizer::text_of(int32_t id) const {
  static const std::string kBeyond = "\uFFFD";
  const auto added = added_texts_.find(id);
  return added != added_texts_.end()        ? added->second
         : id < model_->vocabulary().size() ? model_->vocabulary().token(id)
                                            : kBeyond;
}

std::unique_ptr<TokenStream> JsonTokenizer::stream() const {
  return std::make_unique<Stream>(*this);
}

std::string JsonTokenizer::decode(std::span<const int32_t> ids) const {
  Stream stream(*this);
  std::string text;
  for (const int32_t id : ids) {
    text += stream.push(id);
  }
  return text + stream.finish();
}

void JsonTokenizer::save(const std::filesystem::path& directory) const {
  for (const auto& [name, bytes] : files_) {
    write_file_atomically(directory / name, bytes);
  }
}

}  // namespace quads
