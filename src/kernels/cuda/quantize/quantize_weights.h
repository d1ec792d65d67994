// Weights as the trainer holds them, BF16 on the device, to what the grouped product reads: NVFP4,
// FP8 or BF16 in fragment order, in place. The bytes are those of numerics' quantisers under
// power-of-two scales, packed by fragment_weights.h or fragment_plain.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/cuda/experts/weight_format.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// Device pointers, 16-byte aligned.
struct QuantizeWeights {
  WeightFormat format = WeightFormat::kNvfp4;
  int matrices = 0;         // 1..kMaxExperts, of one shape
  const Bf16* w = nullptr;  // matrix i is [n, k] row-major at w + i * stride
  int64_t stride = 0;       // elements, a multiple of 8
  int64_t n = 0;            // a multiple of 64
  int64_t k = 0;            // a multiple of 16
  /// [k / 16] position that each block of 16 channels takes along K; null for the natural order.
  /// NVFP4 only.
  const int32_t* block_position = nullptr;
  bool paired = false;           // rows are gates, then ups: in the order of paired_rows.h
  uint8_t* fragments = nullptr;  // [matrices][fragment_bytes(n, k, format)]
  /// [matrices] NVFP4's, 1 for other formats. What they hold before changes no bit: a matrix whose
  /// scale is there already, as after another sync, is read once, others twice. 0: none is known.
  float* global_scales = nullptr;
  /// [matrices] the BF16 bits of each amax. 7F80 or more: a value is not finite; more than
  /// max_weight_bits(format): rounding could leave the format's range. The fragments of such a
  /// matrix are undefined.
  uint32_t* amax_bits = nullptr;
  uint32_t* scratch = nullptr;  // [matrices], of NVFP4; may be null for others
};

/// The BF16 bits of the largest magnitude that a matrix may hold: a value may be rounded up by
/// 1/16, and stay within BF16 (NVFP4); a block's scale must fit its place in the fragments (FP8).
constexpr uint32_t max_weight_bits(WeightFormat format) {
  switch (format) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Fp16:
      return 0x7F6F;  // below 1.875 * 2^127
    case WeightFormat::kFp8:
      return 0x4B60;  // 448 * 2^15
    case WeightFormat::kBf16:
      return 0x7F7F;
  }
  return 0;
}

/// The BF16 bits of the largest magnitude of each of several arrays, NaN above infinity above
/// numbers: amax_bits [matrices] of w + i * stride, `size` elements each, a multiple of 8. Clears
/// them, and launches a kernel.
void weight_amax(const CudaContext& context, const Bf16* w, int matrices, int64_t stride,
                 int64_t size, uint32_t* amax_bits);

/// Clears amax_bits, and launches a kernel or, of NVFP4, two. Error on sizes out of range.
void quantize_weights(const CudaContext& context, const QuantizeWeights& args);

}  // namespace quads::kernels::cuda
