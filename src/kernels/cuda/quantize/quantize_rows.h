// Rows of activations to the images of q1 and q2 that the grouped product reads: NVFP4 with
// residual compensation, both passes at once, FP8, or BF16 as it is. Codes are never formed; the
// values are those of numerics/nvfp4.h, rac.h and fp8.h bit for bit, exact in BF16, scales folded
// in. Under a floor of q2's scales there is one image, of (q1 + q2) / g, exact in FP16, and the g
// of every row (WeightFormat::kNvfp4Fp16).
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/cuda/experts/activation_image.h"
#include "kernels/cuda/experts/weight_format.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

inline constexpr int64_t kMaxQuantizedK = 16384;
inline constexpr int kMaxCopies = 32;

/// What the kernel before the previous one wrote, or an earlier one: under overlap it is read while
/// the previous one ends.
enum class OlderInput : uint8_t { kNone, kRows, kPlaces };

/// Device pointers; x, gate_up, q1 and q2 16-byte aligned.
struct QuantizeRows {
  WeightFormat format = WeightFormat::kNvfp4;  // of the values
  const Bf16* x = nullptr;                     // [rows, k], row stride ldx, a multiple of 8
  /// In place of x: [rows, 2 k] gates, then ups, row stride ldx; x is bf16(silu(gate) * up), SiLU
  /// as docs/numerics.md has it.
  const float* gate_up = nullptr;
  int64_t ldx = 0;
  int64_t rows = 0;
  int64_t k = 0;  // a multiple of 16, at most kMaxQuantizedK
  /// [rows, copies] (sort_slots): a row is written to every place that it goes to (a token to its
  /// experts). A
  /// row that goes nowhere may hold anything.
  const ImageRow* image_rows = nullptr;
  int copies = 1;  // at most kMaxCopies
  OlderInput older = OlderInput::kNone;

  // Compensation; the NVFP4 formats only.
  /// [k / 16] position that each block of 16 takes along K; null for the natural order.
  const int32_t* block_position = nullptr;
  /// Blocks at positions below are compensated. q2's image has stages_of(16 * residual_blocks).
  int residual_blocks = 0;
  /// [k] in the natural order, 1 = compensated; null: every channel of those blocks.
  const uint8_t* channel_mask = nullptr;
  bool scale_floor = false;  // numerics/rac.h; kNvfp4Fp16 needs it

  // Statistics; the NVFP4 formats only.
  /// [k] in the natural order: += numerics' residual_units of every channel, selected or not, of
  /// every counted row. Sums of integers: the same in any order. Null: none.
  int64_t* residual_sums = nullptr;
  /// Row r counts if counted[tokens[r]] != 0; null: all count, row r is token r.
  const uint8_t* counted = nullptr;
  const int32_t* tokens = nullptr;

  Bf16* q1 = nullptr;
  Bf16* q2 = nullptr;           // not of kNvfp4Fp16
  float* row_scales = nullptr;  // [padded rows] of the image; kNvfp4Fp16 only
  /// Lowered (atomic minimum) to the first row that holds a NaN or an Inf, or whose rounding leaves
  /// BF16's range. Such a row's image holds a NaN or an Inf in its place, and it does not count.
  /// The caller sets it to INT32_MAX beforehand.
  int32_t* first_bad_row = nullptr;
};

/// Launches one kernel. Error on sizes out of range.
void quantize_rows(const CudaContext& context, const QuantizeRows& args);

}  // namespace quads::kernels::cuda
