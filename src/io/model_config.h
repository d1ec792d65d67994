// A model's config.json, as transformers writes and reads it, for the architectures Qwen3-MoE,
// Qwen3, Qwen2-MoE, OLMoE and Mixtral.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "io/rope_config.h"

namespace quads {

enum class Architecture { kQwen3Moe, kQwen3, kQwen2Moe, kOlmoe, kMixtral };

/// What queries and keys are normalised over: nothing, each head, or all heads together.
enum class QkNorm { kNone, kHead, kProjection };

/// "Qwen3MoeForCausalLM".
std::string architecture_name(Architecture architecture);

/// Fields carry the names of config.json. The expert fields are 0 or unused for kQwen3. OLMoE and
/// Mixtral call the experts' size intermediate_size: here both sizes have that value, and Mixtral's
/// norm_topk_prob is true.
struct ModelConfig {
  Architecture architecture = Architecture::kQwen3Moe;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of dense layers
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  bool qkv_bias = false;  // Qwen2-MoE

  int64_t moe_intermediate_size = 0;  // of one expert
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = false;
  int64_t decoder_sparse_step = 1;
  std::vector<int64_t> mlp_only_layers;
  int64_t shared_expert_intermediate_size = 0;  // Qwen2-MoE

  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;

  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> pad_token_id;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  /// Whether the layer's feed-forward part has experts; the rule of transformers'
  /// Qwen3MoeDecoderLayer.
  bool is_sparse(int64_t layer) const;
  /// Whether it has an expert that every token goes through besides.
  bool has_shared_expert(int64_t layer) const {
    return is_sparse(layer) && shared_expert_intermediate_size > 0;
  }
  QkNorm qk_norm() const;
};

// The largest sizes: far above any model there is, and low enough that no product of them overflows
// and that the list of the tensors stays short.
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;  // hidden and intermediate sizes
inline constexpr int64_t kMaxHeads = int64_t{1} << 16;  // and head_dim
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
inline constexpr int64_t kMaxExperts = int64_t{1} << 16;  // of a layer
inline constexpr int64_t kMaxExpertsOfAllLayers = int64_t{1} << 18;
inline constexpr double kMaxParameters = 0x1p45;

/// Error (with `where` in front) unless the sizes are in 1..their maximum and go together: heads a
/// multiple of key-value heads, an even head_dim, at least as many experts as are chosen for a
/// token, token ids within the vocabulary. Whether kernels support the sizes is not checked here.
void validate(const ModelConfig& config, const std::string& where);

/// Reads config.json's object. A missing head_dim is transformers' default (hidden_size / heads,
/// but 128 for Qwen3). Errors: an unknown architecture, a missing size, other rope scalings than
/// RopeType has, attention bias (other than Qwen2-MoE's), clipped q, k and v, sliding windows,
/// another activation than SiLU, a quantised checkpoint, and any key that is not known to be
/// without influence on the model's arithmetic; each names key and value.
ModelConfig model_config_from_json(const Json& json, const std::string& where);

/// What transformers 4 and 5 load.
Json model_config_to_json(const ModelConfig& config);

/// `directory`/config.json.
ModelConfig load_model_config(const std::filesystem::path& directory);
void save_model_config(const ModelConfig& config, const std::filesystem::path& directory);

}  // namespace quads
