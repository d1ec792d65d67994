// generation_config.json to GenerationConfig and back.
#include "io/generation_config.h"

#include "base/error.h"
#include "io/json.h"
#include "io/token_ids.h"

namespace quads {
namespace {

void validate(const GenerationConfig& config, const std::string& where) {
  require(!config.temperature || *config.temperature > 0, "{}: temperature = {} is not positive",
          where, config.temperature.value_or(0));
  require(!config.top_p || (*config.top_p > 0 && *config.top_p <= 1),
          "{}: top_p = {} is not in (0, 1]", where, config.top_p.value_or(0));
  require(config.top_k.value_or(0) >= 0, "{}: top_k = {} is negative", where,
          config.top_k.value_or(0));
}

}  // namespace

std::optional<GenerationConfig> load_generation_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  const std::string where = path.string();
  const Json json = read_json_file(path);
  GenerationConfig config{
      .eos_token_ids = read_token_ids(json, "eos_token_id", where),
      .bos_token_id = find_key<int32_t>(json, "bos_token_id", where),
      .pad_token_id = find_key<int32_t>(json, "pad_token_id", where),
      .temperature = find_key<double>(json, "temperature", where),
      .top_p = find_key<double>(json, "top_p", where),
      .top_k = find_key<int64_t>(json, "top_k", where),
  };
  validate(config, where);
  return config;
}

void save_generation_config(const GenerationConfig& config,
                            const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  validate(config, path.string());
  Json json = {{"do_sample", true}};
  const auto set = [&](const char* key, const Json& value) {
    if (!value.is_null()) {
      json[key] = value;
    }
  };
  set("eos_token_id", token_ids_to_json(config.eos_token_ids));
  set("bos_token_id", optional_to_json(config.bos_token_id));
  set("pad_token_id", optional_to_json(config.pad_token_id));
  set("temperature", optional_to_json(config.temperature));
  set("top_p", optional_to_json(config.top_p));
  set("top_k", optional_to_json(config.top_k));
  write_json_file(path, json);
}

}  // namespace quads
