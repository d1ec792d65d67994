// Chooses the tokenizer class for a tokenizer.json.
#include "io/tokenizer.h"

#include "base/error.h"
#include "io/character_tokenizer.h"
#include "io/json.h"

namespace quads {
namespace {

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

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  const Json json = read_json_file(path);
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  SpecialTokens special;
  if (std::filesystem::exists(config_path)) {
    const Json config = read_json_file(config_path);
    special.eos = special_token(config, "eos_token", config_path.string());
    special.pad = special_token(config, "pad_token", config_path.string());
  }
  const auto model = get<Json>(json, "model", path.string());
  const auto type = get<std::string>(model, "type", path.string() + ": model");
  require(type == "WordLevel", "{}: model type '{}' is not supported, only 'WordLevel' is",
          path.string(), type);
  return std::make_unique<CharacterTokenizer>(
      character_vocabulary_from_json(json, special, path.string()));
}

}  // namespace quads
