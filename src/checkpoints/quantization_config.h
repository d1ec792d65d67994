// How a checkpoint says that it is quantised: config.json's quantization_config, and ModelOpt's
// hf_quant_config.json beside it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/module_patterns.h"
#include "io/json.h"

namespace quads {

enum class CheckpointFormat : uint8_t { kNvfp4ModelOpt, kNvfp4CompressedTensors, kFp8 };

/// "nvfp4-modelopt", "nvfp4-compressed-tensors" or "fp8" (128 x 128 blocks, as DeepSeek's and
/// Qwen's). Error on anything else, with the list.
CheckpointFormat parse_checkpoint_format(std::string_view name);
std::string_view checkpoint_format_name(CheckpointFormat format);

struct QuantizationConfig {
  CheckpointFormat format;
  /// NVFP4 weights without input scales: activations stay BF16. FP8's activations are quantised as
  /// they come, and have no scales in the file.
  bool weights_only = false;
  /// k_scale and v_scale may lie beside the weights. A KV cache is BF16 here; they are not used.
  bool kv_cache_scales = false;
  ModulePatterns ignore;   // modules that stay unquantised
  ModulePatterns targets;  // modules that are quantised otherwise; "Linear" is any
  bool quantises(const std::string& module) const;
};

/// What `directory` says; nothing for an unquantised checkpoint. Errors, naming file, key and
/// value: a method, algorithm or form other than the three above; transforms and sparsity;
/// config.json and hf_quant_config.json that differ.
std::optional<QuantizationConfig> read_quantization_config(const std::filesystem::path& directory);

/// config.json's quantization_config with `ignore` as the unquantised modules.
Json quantization_config_json(CheckpointFormat format, bool weights_only,
                              const std::vector<std::string>& ignore);
/// hf_quant_config.json of the same (ModelOpt's format only).
Json hf_quant_config_json(bool weights_only, const std::vector<std::string>& ignore);

}  // namespace quads
