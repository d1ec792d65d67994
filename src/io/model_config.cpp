// config.json to ModelConfig and back.
#include "io/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "base/error.h"
#include "io/token_ids.h"

namespace quads {
namespace {

constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();

// Keys that do not change what the model computes.
const std::set<std::string_view>& harmless_keys() {
  static const std::set<std::string_view> keys = {
      "_attn_implementation_autoset",
      "_name_or_path",
      "auto_map",
      "chunk_size_feed_forward",
      "dtype",
      "experts_implementation",
      "head_dtype",
      "id2label",
      "label2id",
      "max_window_layers",
      "output_attentions",
      "output_hidden_states",
      "output_router_logits",
      "problem_type",
      "return_dict",
      "router_aux_loss_coef",
      "sliding_window",  // of no effect without use_sliding_window
      "torch_dtype",
      "transformers_version",
      "use_cache",
  };
  return keys;
}

const std::set<std::string_view>& used_keys() {
  static const std::set<std::string_view> keys = {
      "architectures",
      "attention_bias",
      "attention_dropout",
      "bos_token_id",
      "decoder_sparse_step",
      "eos_token_id",
      "head_dim",
      "hidden_act",
      "hidden_size",
      "initializer_range",
      "intermediate_size",
      "layer_types",
      "max_position_embeddings",
      "mlp_only_layers",
      "model_type",
      "moe_intermediate_size",
      "norm_topk_prob",
      "num_attention_heads",
      "num_experts",
      "num_experts_per_tok",
      "num_hidden_layers",
      "num_key_value_heads",
      "num_local_experts",
      "pad_token_id",
      "rms_norm_eps",
      "rope_parameters",
      "rope_scaling",
      "rope_theta",
      "tie_word_embeddings",
      "use_sliding_window",
      "vocab_size",
  };
  return keys;
}

// null, false, 0, "", [] and {} say that a feature is not used.
bool is_off(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         (value.is_structured() && value.empty());
}

Architecture read_architecture(const Json& json, const std::string& where) {
  const auto model_type = find_key<std::string>(json, "model_type", where);
  const auto names = get_or<std::vector<std::string>>(json, "architectures", {}, where);
  require(names.size() <= 1, "{}: 'architectures' names {} classes instead of one", where,
          names.size());
  require(model_type || !names.empty(), "{}: neither 'architectures' nor 'model_type' is given",
          where);
  for (const Architecture architecture : {Architecture::kQwen3Moe, Architecture::kQwen3}) {
    const bool name_fits = names.empty() || names[0] == architecture_name(architecture);
    const char* type = architecture == Architecture::kQwen3Moe ? "qwen3_moe" : "qwen3";
    if (name_fits && (!model_type || *model_type == type)) {
      return architecture;
    }
  }
  fail(
      "{}: architecture '{}' (model_type '{}') is not supported; Qwen3MoeForCausalLM and "
      "Qwen3ForCausalLM are",
      where, names.empty() ? "" : names[0], model_type.value_or(""));
}

double read_rope_theta(const Json& json, const std::string& where) {
  std::optional<double> theta = find_key<double>(json, "rope_theta", where);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto rope = find_key<Json>(json, key, where);
    if (!rope) {
      continue;
    }
    const std::string inside = fmt::format("{}: '{}'", where, key);
    const auto type = find_key<std::string>(*rope, "rope_type", inside)
                          .value_or(get_or<std::string>(*rope, "type", "default", inside));
    require(type == "default", "{}: rope_type '{}' is not supported, only 'default' is", inside,
            type);
    for (const auto& [name, value] : rope->items()) {
      require(name == "rope_type" || name == "type" || name == "rope_theta" || is_off(value) ||
                  (name == "partial_rotary_factor" && value == 1),
              "{}: {} = {} is not supported", inside, name, json_excerpt(value));
    }
    const auto inner = find_key<double>(*rope, "rope_theta", inside);
    require(!inner || !theta || *inner == *theta, "{}: rope_theta {} contradicts {} elsewhere",
            inside, inner.value_or(0), theta.value_or(0));
    theta = theta ? theta : inner;
  }
  require(theta.has_value(), "{}: neither 'rope_parameters' nor 'rope_theta' gives the RoPE base",
          where);
  return *theta;
}

void reject_unsupported(const Json& json, const std::string& where) {
  const auto must_be = [&](const char* key, const Json& supported) {
    const auto it = json.find(key);
    require(it == json.end() || it->is_null() || *it == supported,
            "{}: '{}' = {} is not supported, only {} is", where, key, json_excerpt(*it),
            json_excerpt(supported));
  };
  must_be("attention_bias", false);
  must_be("attention_dropout", 0);
  must_be("hidden_act", "silu");
  must_be("use_sliding_window", false);
  for (const auto& type : get_or<std::vector<std::string>>(json, "layer_types", {}, where)) {
    require(type == "full_attention",
            "{}: layer type '{}' is not supported, only "
            "'full_attention' is",
            where, type);
  }
  for (const auto& [key, value] : json.items()) {
    require(used_keys().contains(key) || harmless_keys().contains(key) || is_off(value),
            "{}: key '{}' = {} is not supported", where, key, json_excerpt(value));
  }
}

// transformers 5 writes num_local_experts, before it was num_experts.
int64_t read_num_experts(const Json& json, const std::string& where) {
  const auto old_name = find_key<int64_t>(json, "num_experts", where);
  const auto new_name = find_key<int64_t>(json, "num_local_experts", where);
  require(!old_name || !new_name || *old_name == *new_name,
          "{}: num_experts {} contradicts num_local_experts {}", where, old_name.value_or(0),
          new_name.value_or(0));
  require(old_name || new_name, "{}: key 'num_experts' is missing", where);
  return old_name ? *old_name : *new_name;
}

void require_size(int64_t value, int64_t most, const char* key, const std::string& where) {
  require(value >= 1 && value <= most, "{}: {} = {} is not in 1..{}", where, key, value, most);
}

void validate_experts(const ModelConfig& config, const std::string& where) {
  require(config.num_experts >= 0 && config.num_experts <= kMaxExperts,
          "{}: num_experts = {} is not in 0..{}", where, config.num_experts, kMaxExperts);
  require(config.num_experts * config.num_hidden_layers <= kMaxExpertsOfAllLayers,
          "{}: num_experts = {} in each of num_hidden_layers = {} are more than {} experts in all",
          where, config.num_experts, config.num_hidden_layers, kMaxExpertsOfAllLayers);
  require_size(config.decoder_sparse_step, kMaxPositions, "decoder_sparse_step", where);
  for (const int64_t layer : config.mlp_only_layers) {
    require(layer >= 0 && layer < config.num_hidden_layers,
            "{}: mlp_only_layers holds {}, but the layers are 0..{}", where, layer,
            config.num_hidden_layers - 1);
  }
  if (config.num_experts > 0) {
    require_size(config.moe_intermediate_size, kMaxWidth, "moe_intermediate_size", where);
    require(config.num_experts_per_tok >= 1 && config.num_experts_per_tok <= config.num_experts,
            "{}: num_experts_per_tok = {} is not in 1..num_experts = {}", where,
            config.num_experts_per_tok, config.num_experts);
  }
}

void require_moderate_total(const ModelConfig& c, const std::string& where) {
  // In floating point, where nothing overflows; a few parameters more or less do not matter here.
  const auto product = [](auto... sizes) { return (1.0 * ... * static_cast<double>(sizes)); };
  const double heads = 2.0 * static_cast<double>(c.num_attention_heads + c.num_key_value_heads);
  const double mlp =
      std::max(product(3, c.intermediate_size), product(3, c.num_experts, c.moe_intermediate_size));
  const double total =
      product(2, c.vocab_size, c.hidden_size) +
      product(c.num_hidden_layers, c.hidden_size) * (heads * static_cast<double>(c.head_dim) + mlp);
  require(
      total <= kMaxParameters,
      "{}: vocab_size = {}, hidden_size = {}, num_hidden_layers = {}, num_attention_heads = {}, "
      "head_dim = {}, intermediate_size = {}, num_experts = {} and moe_intermediate_size = {} "
      "make {:.3g} parameters, more than {:.3g}",
      where, c.vocab_size, c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.head_dim,
      c.intermediate_size, c.num_experts, c.moe_intermediate_size, total, kMaxParameters);
}

}  // namespace

std::string architecture_name(Architecture architecture) {
  return architecture == Architecture::kQwen3Moe ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM";
}

bool ModelConfig::is_sparse(int64_t layer) const {
  return architecture == Architecture::kQwen3Moe && num_experts > 0 &&
         (layer + 1) % decoder_sparse_step == 0 &&
         std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) == mlp_only_layers.end();
}

void validate(const ModelConfig& config, const std::string& where) {
  require_size(config.vocab_size, kMaxVocabulary, "vocab_size", where);
  require_size(config.hidden_size, kMaxWidth, "hidden_size", where);
  require_size(config.intermediate_size, kMaxWidth, "intermediate_size", where);
  require_size(config.num_hidden_layers, kMaxLayers, "num_hidden_layers", where);
  require_size(config.num_attention_heads, kMaxHeads, "num_attention_heads", where);
  require_size(config.num_key_value_heads, kMaxHeads, "num_key_value_heads", where);
  require_size(config.head_dim, kMaxHeads, "head_dim", where);
  require_size(config.max_position_embeddings, kMaxPositions, "max_position_embeddings", where);
  require(config.num_attention_heads % config.num_key_value_heads == 0,
          "{}: num_attention_heads = {} is not a multiple of num_key_value_heads = {}", where,
          config.num_attention_heads, config.num_key_value_heads);
  require(config.head_dim % 2 == 0, "{}: head_dim = {} is odd, which RoPE does not allow", where,
          config.head_dim);
  require(config.rms_norm_eps > 0 && std::isfinite(config.rms_norm_eps),
          "{}: rms_norm_eps = {} is not a positive number", where, config.rms_norm_eps);
  require(config.rope_theta > 0 && std::isfinite(config.rope_theta),
          "{}: rope_theta = {} is not a positive number", where, config.rope_theta);
  require(config.initializer_range >= 0 && std::isfinite(config.initializer_range),
          "{}: initializer_range = {} is not a number >= 0", where, config.initializer_range);
  if (config.architecture == Architecture::kQwen3Moe) {
    validate_experts(config, where);
  }
  require_moderate_total(config, where);
  const auto check_token = [&](int32_t id, const char* key) {
    require(id >= 0 && id < config.vocab_size, "{}: {} = {} is not in the vocabulary of {}", where,
            key, id, config.vocab_size);
  };
  for (const int32_t id : config.eos_token_ids) {
    check_token(id, "eos_token_id");
  }
  if (config.bos_token_id) {
    check_token(*config.bos_token_id, "bos_token_id");
  }
  if (config.pad_token_id) {
    check_token(*config.pad_token_id, "pad_token_id");
  }
}

ModelConfig model_config_from_json(const Json& json, const std::string& where) {
  require(json.is_object(), "{}: {} is not an object", where, json_excerpt(json));
  ModelConfig config;
  config.architecture = read_architecture(json, where);
  reject_unsupported(json, where);
  const auto size = [&](const char* key) { return get<int64_t>(json, key, where); };
  config.vocab_size = size("vocab_size");
  config.hidden_size = size("hidden_size");
  config.intermediate_size = size("intermediate_size");
  config.num_hidden_layers = size("num_hidden_layers");
  config.num_attention_heads = size("num_attention_heads");
  config.num_key_value_heads = size("num_key_value_heads");
  config.max_position_embeddings = size("max_position_embeddings");
  require_size(config.num_attention_heads, kMaxHeads, "num_attention_heads", where);
  const int64_t default_head_dim = config.architecture == Architecture::kQwen3Moe
                                       ? config.hidden_size / config.num_attention_heads
                                       : 128;
  config.head_dim = get_or<int64_t>(json, "head_dim", default_head_dim, where);
  if (config.architecture == Architecture::kQwen3Moe) {
    config.moe_intermediate_size = size("moe_intermediate_size");
    config.num_experts = read_num_experts(json, where);
    config.num_experts_per_tok = size("num_experts_per_tok");
    config.norm_topk_prob = get_or(json, "norm_topk_prob", false, where);
    config.decoder_sparse_step = get_or<int64_t>(json, "decoder_sparse_step", 1, where);
    config.mlp_only_layers = get_or<std::vector<int64_t>>(json, "mlp_only_layers", {}, where);
  }
  config.rms_norm_eps = get_or(json, "rms_norm_eps", 1e-6, where);
  config.rope_theta = read_rope_theta(json, where);
  config.initializer_range = get_or(json, "initializer_range", 0.02, where);
  config.tie_word_embeddings = get_or(json, "tie_word_embeddings", false, where);
  config.bos_token_id = find_key<int32_t>(json, "bos_token_id", where);
  config.eos_token_ids = read_token_ids(json, "eos_token_id", where);
  config.pad_token_id = find_key<int32_t>(json, "pad_token_id", where);
  validate(config, where);
  return config;
}

Json model_config_to_json(const ModelConfig& config) {
  const bool is_moe = config.architecture == Architecture::kQwen3Moe;
  Json json = {
      {"architectures", {architecture_name(config.architecture)}},
      {"model_type", is_moe ? "qwen3_moe" : "qwen3"},
      {"dtype", "bfloat16"},        // transformers 5
      {"torch_dtype", "bfloat16"},  // transformers 4
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"max_position_embeddings", config.max_position_embeddings},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"use_sliding_window", false},
      {"rms_norm_eps", config.rms_norm_eps},
      {"initializer_range", config.initializer_range},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", nullptr},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", config.rope_theta}}},
      {"bos_token_id", optional_to_json(config.bos_token_id)},
      {"eos_token_id", token_ids_to_json(config.eos_token_ids)},
      {"pad_token_id", optional_to_json(config.pad_token_id)},
  };
  if (is_moe) {
    json["moe_intermediate_size"] = config.moe_intermediate_size;
    json["num_experts"] = config.num_experts;
    json["num_experts_per_tok"] = config.num_experts_per_tok;
    json["norm_topk_prob"] = config.norm_topk_prob;
    json["decoder_sparse_step"] = config.decoder_sparse_step;
    json["mlp_only_layers"] = config.mlp_only_layers;
  }
  return json;
}

ModelConfig load_model_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  return model_config_from_json(read_json_file(path), path.string());
}

void save_model_config(const ModelConfig& config, const std::filesystem::path& directory) {
  validate(config, (directory / "config.json").string());
  write_json_file(directory / "config.json", model_config_to_json(config));
}

}  // namespace quads
