// Writing a model as a quantised checkpoint that other engines load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoints/input_amax.h"
#include "checkpoints/quantization_config.h"
#include "kernels/cpu/context.h"
#include "model/parameters.h"
#include "model/precision.h"

namespace quads {

enum class GlobalScale : uint8_t { kPowerOfTwo, kAmax };
/// "pow2" or "amax".
GlobalScale parse_global_scale(std::string_view name);

struct WriteQuantisedOptions {
  CheckpointFormat format = CheckpointFormat::kNvfp4ModelOpt;
  QuantizeScope scope;
  /// Modules that stay unquantised besides: names, parents' names, wildcards, "re:" expressions.
  std::vector<std::string> exclude;
  /// NVFP4: how a weight's global scale comes from its amax. A power of two gives the weights that
  /// a rollout multiplies with, exact in BF16; amax / 2688 those of other tools.
  GlobalScale global_scale = GlobalScale::kPowerOfTwo;
  /// NVFP4: whence the static input scales; null: weights only.
  const InputAmax* input_amax = nullptr;
  /// Called, one call at a time, with the matrices done, 0 at first, and those in all.
  std::function<void(int64_t done, int64_t total)> on_progress;
};

/// Writes model.safetensors (or shards), config.json (`source`'s, with quantization_config) and for
/// ModelOpt hf_quant_config.json into `out`, an existing directory, and copies tokenizer and
/// generation_config.json from `source`. Each expert has tensors of its own; what shares an input
/// (gate and up; q, k and v) shares a global scale. Errors: an exclusion that names no module,
/// parts what shares a global scale, or leaves some experts of a layer; nothing left to quantise;
/// a value that is not finite, or not in BF16 once it is quantised.
void write_quantised(const kernels::CpuContext& context, const Parameters& parameters,
                     const std::filesystem::path& source, const std::filesystem::path& out,
                     const WriteQuantisedOptions& options);

}  // namespace quads
