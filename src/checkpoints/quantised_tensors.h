// The tensors of one quantised linear layer in a file: their names, their checks, their values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoints/quantization_config.h"
#include "io/safetensors.h"
#include "model/stored_weights.h"
#include "numerics/bf16.h"

namespace quads {

/// What follows the module's name and a dot. Null where a format has no such tensor.
struct QuantisedNames {
  const char* codes;         // U8 [n, k / 2] or F8_E4M3 [n, k]
  const char* scales;        // F8_E4M3 [n, k / 16]; FP8: F32 or BF16 [ceil(n / 128), ceil(k / 128)]
  const char* global_scale;  // F32, one value
  const char* input_scale;   // F32, one value
};
const QuantisedNames& quantised_names(CheckpointFormat format);

/// The tensors found for one module.
struct QuantisedTensors {
  std::optional<TensorView> codes, scales, global_scale, input_scale;

  /// Takes the tensor if it is one of a quantised layer under this format's names.
  bool take(const TensorView& tensor, CheckpointFormat format);
};

/// Error, naming the tensor, unless all that the format wants for a weight [n, k] are there, of the
/// right types and shapes, and hold what they may: scales neither negative nor NaN, global scales
/// positive and finite.
void check_quantised(const QuantisedTensors& tensors, const QuantizationConfig& config,
                     const std::string& module, int64_t n, int64_t k);

/// Elements [begin, begin + count) of a weight with rows of `k`, row-major, dequantised; the
/// tensors were checked. NVFP4: e2m1 * (e4m3 * global scale), or, with compressed-tensors' divisor,
/// e2m1 * (e4m3 / divisor); FP8: e4m3 * scale. FP32 products, the last rounded to BF16: what
/// compressed-tensors and transformers give (ModelOpt too, but for -0, which it reads as 0). Error,
/// naming row and column, on an E4M3 NaN and on a value beyond BF16's range.
void dequantise(const QuantisedTensors& tensors, CheckpointFormat format, int64_t k, int64_t begin,
                int64_t count, Bf16* out);

/// The multiplier that an NVFP4 module's global scale is: of a divisor the reciprocal, in FP32.
float global_multiplier(const QuantisedTensors& tensors, CheckpointFormat format);

/// Appends the module's NVFP4 codes and block scales to those of the parameter that it is part of.
void append_stored(const QuantisedTensors& tensors, StoredMatrix* stored);

}  // namespace quads
