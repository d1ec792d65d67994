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
      "torch_dtype",
      "transformers_version",
      "use_cache",
  };
  return keys;
}

// Keys that every architecture has.
const std::set<std::string_view>& common_keys() {
  static const std::set<std::string_view> keys = {
      "architectures",
      "attention_dropout",
      "bos_token_id",
      "eos_token_id",
      "head_dim",
      "hidden_act",
      "hidden_size",
      "initializer_range",
      "intermediate_size",
      "layer_types",
      "max_position_embeddings",
      "model_type",
      "num_attention_heads",
      "num_hidden_layers",
      "num_key_value_heads",
      "pad_token_id",
      "rms_norm_eps",
      "rope_parameters",
      "rope_scaling",
      "rope_theta",
      "tie_word_embeddings",
      "vocab_size",
  };
  return keys;
}

// What the architectures differ in. Indexed by Architecture.
struct Family {
  Architecture architecture;
  const char* class_name;
  const char* model_type;
  QkNorm qk_norm;
  double default_rms_norm_eps;
  std::set<std::string_view> keys;  // besides the common ones
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {Architecture::kQwen3Moe,
       "Qwen3MoeForCausalLM",
       "qwen3_moe",
       QkNorm::kHead,
       1e-6,
       {"attention_bias", "decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size",
        "norm_topk_prob", "num_experts", "num_local_experts", "num_experts_per_tok",
        "sliding_window", "use_sliding_window"}},
      {Architecture::kQwen3,
       "Qwen3ForCausalLM",
       "qwen3",
       QkNorm::kHead,
       1e-6,
       {"attention_bias", "sliding_window", "use_sliding_window"}},
      {Architecture::kQwen2Moe,
       "Qwen2MoeForCausalLM",
       "qwen2_moe",
       QkNorm::kNone,
       1e-6,
       {"decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob",
        "num_experts", "num_local_experts", "num_experts_per_tok", "qkv_bias",
        "shared_expert_intermediate_size", "sliding_window", "use_sliding_window"}},
      {Architecture::kOlmoe,
       "OlmoeForCausalLM",
       "olmoe",
       QkNorm::kProjection,
       1e-5,
       {"attention_bias", "norm_topk_prob", "num_experts", "num_local_experts",
        "num_experts_per_tok"}},
      {Architecture::kMixtral,
       "MixtralForCausalLM",
       "mixtral",
       QkNorm::kNone,
       1e-5,
       {"num_experts", "num_local_experts", "num_experts_per_tok"}},
  };
  return all;
}

const Family& family_of(Architecture architecture) {
  return families()[static_cast<size_t>(architecture)];
}

// Whether intermediate_size is that of the experts.
bool all_layers_have_experts(Architecture architecture) {
  return architecture == Architecture::kOlmoe || architecture == Architecture::kMixtral;
}

Architecture read_architecture(const Json& json, const std::string& where) {
  const auto model_type = find_key<std::string>(json, "model_type", where);
  const auto names = get_or<std::vector<std::string>>(json, "architectures", {}, where);
  require(names.size() <= 1, "{}: 'architectures' names {} classes instead of one", where,
          names.size());
  require(model_type || !names.empty(), "{}: neither 'architectures' nor 'model_type' is given",
          where);
  std::vector<std::string_view> known;
  for (const Family& family : families()) {
    const bool name_fits = names.empty() || names[0] == family.class_name;
    if (name_fits && (!model_type || *model_type == family.model_type)) return family.architecture;
    known.push_back(family.class_name);
  }
  fail("{}: architecture '{}' (model_type '{}') is not supported; {} are", where,
       names.empty() ? "" : names[0], model_type.value_or(""), fmt::join(known, ", "));
}

void reject_unsupported(const Json& json, const Family& family, const std::string& where) {
  const auto must_be = [&](const char* key, const Json& supported) {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null() || *it == supported) return;
    fail("{}: '{}' = {} is not supported, only {} is", where, key, json_excerpt(*it),
         json_excerpt(supported));
  };
  must_be("attention_bias", false);
  must_be("attention_dropout", 0);
  must_be("hidden_act", "silu");
  must_be("use_sliding_window", false);
  if (!family.keys.contains("use_sliding_window")) must_be("sliding_window", nullptr);
  for (const auto& type : get_or<std::vector<std::string>>(json, "layer_types", {}, where)) {
    require(type == "full_attention",
            "{}: layer type '{}' is not supported, only "
            "'full_attention' is",
            where, type);
  }
  for (const auto& [key, value] : json.items()) {
    require(common_keys().contains(key) || family.keys.contains(key) ||
                harmless_keys().contains(key) || is_off(value),
            "{}: key '{}' = {} is not supported for {}", where, key, json_excerpt(value),
            family.class_name);
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
  if (all_layers_have_experts(config.architecture)) {
    require(config.num_experts > 0, "{}: {} needs experts, but num_experts = 0", where,
            architecture_name(config.architecture));
  }
  if (config.architecture == Architecture::kQwen2Moe) {
    require_size(config.shared_expert_intermediate_size, kMaxWidth,
                 "shared_expert_intermediate_size", where);
  }
}

void require_moderate_total(const ModelConfig& c, const std::string& where) {
  // In floating point, where nothing overflows; a few parameters more or less do not matter here.
  const auto product = [](auto... sizes) { return (1.0 * ... * static_cast<double>(sizes)); };
  const double heads = 2.0 * static_cast<double>(c.num_attention_heads + c.num_key_value_heads);
  const double mlp = std::max(product(3, c.intermediate_size),
                              product(3, c.num_experts, c.moe_intermediate_size)) +
                     product(3, c.shared_expert_intermediate_size);
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
  return family_of(architecture).class_name;
}

bool ModelConfig::is_sparse(int64_t layer) const {
  return architecture != Architecture::kQwen3 && num_experts > 0 &&
         (layer + 1) % decoder_sparse_step == 0 &&
         std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) == mlp_only_layers.end();
}

QkNorm ModelConfig::qk_norm() const { return family_of(architecture).qk_norm; }

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
  validate(config.rope, where);
  require(config.initializer_range >= 0 && std::isfinite(config.initializer_range),
          "{}: initializer_range = {} is not a number >= 0", where, config.initializer_range);
  if (config.architecture != Architecture::kQwen3) {
    validate_experts(config, where);
  }
  require_moderate_total(config, where);
  if (config.qk_norm() == QkNorm::kProjection) {
    require(config.num_attention_heads * config.head_dim == config.hidden_size,
            "{}: head_dim = {} is not hidden_size = {} / num_attention_heads = {}, as {} has it",
            where, config.head_dim, config.hidden_size, config.num_attention_heads,
            architecture_name(config.architecture));
  }
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
  const Family& family = family_of(config.architecture);
  reject_unsupported(json, family, where);
  const auto size = [&](const char* key) { return get<int64_t>(json, key, where); };
  config.vocab_size = size("vocab_size");
  config.hidden_size = size("hidden_size");
  config.intermediate_size = size("intermediate_size");
  config.num_hidden_layers = size("num_hidden_layers");
  config.num_attention_heads = size("num_attention_heads");
  config.num_key_value_heads =
      all_layers_have_experts(config.architecture)  // null: no groups
          ? get_or(json, "num_key_value_heads", config.num_attention_heads, where)
          : size("num_key_value_heads");
  config.max_position_embeddings = size("max_position_embeddings");
  require_size(config.num_attention_heads, kMaxHeads, "num_attention_heads", where);
  const int64_t default_head_dim = config.architecture == Architecture::kQwen3
                                       ? 128
                                       : config.hidden_size / config.num_attention_heads;
  config.head_dim = get_or<int64_t>(json, "head_dim", default_head_dim, where);
  if (config.architecture != Architecture::kQwen3) {
    config.moe_intermediate_size = all_layers_have_experts(config.architecture)
                                       ? config.intermediate_size
                                       : size("moe_intermediate_size");
    config.num_experts = read_num_experts(json, where);
    config.num_experts_per_tok = size("num_experts_per_tok");
    config.norm_topk_prob = config.architecture == Architecture::kMixtral ||
                            get_or(json, "norm_topk_prob", false, where);
    config.decoder_sparse_step = get_or<int64_t>(json, "decoder_sparse_step", 1, where);
    config.mlp_only_layers = get_or<std::vector<int64_t>>(json, "mlp_only_layers", {}, where);
  }
  if (config.architecture == Architecture::kQwen2Moe) {
    config.shared_expert_intermediate_size = size("shared_expert_intermediate_size");
    config.qkv_bias = get_or(json, "qkv_bias", true, where);
  }
  config.rms_norm_eps = get_or(json, "rms_norm_eps", family.default_rms_norm_eps, where);
  config.rope = read_rope(json, config.max_position_embeddings, where);
  config.initializer_range = get_or(json, "initializer_range", 0.02, where);
  config.tie_word_embeddings = get_or(json, "tie_word_embeddings", false, where);
  config.bos_token_id = find_key<int32_t>(json, "bos_token_id", where);
  config.eos_token_ids = read_token_ids(json, "eos_token_id", where);
  config.pad_token_id = find_key<int32_t>(json, "pad_token_id", where);
  validate(config, where);
  return config;
}

Json model_config_to_json(const ModelConfig& config) {
  const Family& family = family_of(config.architecture);
  Json json = {
      {"architectures", {family.class_name}},
      {"model_type", family.model_type},
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
      {"attention_dropout", 0.0},
      {"rms_norm_eps", config.rms_norm_eps},
      {"initializer_range", config.initializer_range},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"bos_token_id", optional_to_json(config.bos_token_id)},
      {"eos_token_id", token_ids_to_json(config.eos_token_ids)},
      {"pad_token_id", optional_to_json(config.pad_token_id)},
  };
  write_rope(config.rope, json);
  const auto put = [&](const char* key, const Json& value) {
    if (family.keys.contains(key)) json[key] = value;
  };
  put("attention_bias", false);
  put("use_sliding_window", false);
  put("moe_intermediate_size", config.moe_intermediate_size);
  put("num_experts_per_tok", config.num_experts_per_tok);
  put("norm_topk_prob", config.norm_topk_prob);
  put("decoder_sparse_step", config.decoder_sparse_step);
  put("mlp_only_layers", config.mlp_only_layers);
  put("shared_expert_intermediate_size", config.shared_expert_intermediate_size);
  put("qkv_bias", config.qkv_bias);
  const bool is_mixtral = config.architecture == Architecture::kMixtral;
  put(is_mixtral ? "num_local_experts" : "num_experts", config.num_experts);
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
