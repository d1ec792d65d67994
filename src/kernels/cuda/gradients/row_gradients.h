// What a backward does row by row: rounding, RMS norms, QK norm and RoPE. Formulas and the order of
// a row's sums are those of the CPU's row kernels (kernels/cpu/rows_norm.inl.h); sums over rows,
// for the gradients of vectors, run over 32 rows at a time (kGradientRows), whose partial sums
// add_partials adds in order.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/kv_pages.h"
#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

inline constexpr int64_t kGradientRows = 32;
constexpr int64_t gradient_blocks(int64_t rows) {
  return (rows + kGradientRows - 1) / kGradientRows;
}

/// out = bf16(x), device pointers, 16-byte aligned; count a multiple of 4. Launches one kernel.
void round_values(const CudaContext& context, const float* x, int64_t count, Bf16* out);

/// Device pointers, 16-byte aligned. dx[r] = dy[r] + the gradient of RMSNorm(x[r]) against dh[r].
struct NormBackward {
  const float* x = nullptr;         // [rows, d], or [*, d] with `places`
  const int32_t* places = nullptr;  // [rows] the row of x and dx that each is; null: row r
  int64_t rows = 0;
  int64_t d = 0;                 // a multiple of 16
  const Bf16* weight = nullptr;  // [d]
  float eps = 0.0F;
  const float* dh = nullptr;  // [rows, d]
  const float* dy = nullptr;  // [rows, d]; null: 0
  float* dx = nullptr;        // [rows, d], or [*, d] with `places`; not dy
  float* partials = nullptr;  // [gradient_blocks(rows), d] of the weight's gradient
};

/// Launches one kernel. Error on sizes out of range.
void norm_backward(const CudaContext& context, const NormBackward& args);

/// Device pointers, 16-byte aligned. From the gradients of rotated queries and keys and of values
/// to that of the qkv product, BF16.
struct QkvBackward {
  HeadShape shape;
  int64_t rows = 0;
  const int32_t* positions = nullptr;  // [rows]
  const float* qkv = nullptr;          // [rows, qkv_width] what the forward's product gave
  const Bf16* q_norm = nullptr;        // as QkvRows (qkv_rows.h); null: none
  const Bf16* k_norm = nullptr;
  bool whole_norm = false;
  float eps = 0.0F;
  const float* cos = nullptr;  // [positions][head_dim / 2]
  const float* sin = nullptr;
  float* dq = nullptr;        // [rows, q_width]; rotated back in place
  float* dk = nullptr;        // [rows, kv_width]; rotated back in place
  const float* dv = nullptr;  // [rows, kv_width]
  Bf16* dqkv = nullptr;       // [rows, qkv_width]
  // Partial sums [gradient_blocks(rows), ...]: of the norms' weights (width as the weights'), and
  // of the biases [qkv_width]; null: none. Not both norms and biases.
  float* q_partials = nullptr;
  float* k_partials = nullptr;
  float* bias_partials = nullptr;

  QUADS_HOST_DEVICE int64_t q_group() const { return whole_norm ? shape.heads : 1; }
  QUADS_HOST_DEVICE int64_t k_group() const { return whole_norm ? shape.kv_heads : 1; }
};

/// Launches one kernel. Error on sizes out of range.
void qkv_backward(const CudaContext& context, const QkvBackward& args);

/// sums [width] += partials [count, width], in order. Launches one kernel.
void add_partials(const CudaContext& context, const float* partials, int64_t count, int64_t width,
                  float* sums);

}  // namespace quads::kernels::cuda
