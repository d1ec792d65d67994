// Fragments of weights back to BF16 matrices, for the products of a backward: what the grouped
// product multiplies with, exactly.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/cuda/experts/weight_format.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// Device pointers, 16-byte aligned.
struct DequantizeWeights {
  WeightFormat format = WeightFormat::kNvfp4;
  int matrices = 0;
  int64_t n = 0;                            // a multiple of 64
  int64_t k = 0;                            // a multiple of 16, at most kMaxDequantizedK
  const uint8_t* fragments = nullptr;       // [matrices][fragment_bytes(n, k, format)]
  const float* global_scales = nullptr;     // [matrices], powers of two
  const int32_t* block_position = nullptr;  // as QuantizeWeights (quantize_weights.h)
  bool paired = false;
  Bf16* values = nullptr;  // [matrices][n, k], the natural order of rows and K
};
inline constexpr int64_t kMaxDequantizedK = 16384;

/// Launches one kernel. Error on sizes out of range.
void dequantize_weights(const CudaContext& context, const DequantizeWeights& args);

/// Behind the checks.
void launch_dequantize_weights(const CudaContext& context, const DequantizeWeights& args);

}  // namespace quads::kernels::cuda
