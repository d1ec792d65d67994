// Contract of the kernels that work row by row: norms, activations, quantisers, routing, softmax,
// sampling, optimizer. A row's result depends on that row alone.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "kernels/adamw_params.h"
#include "numerics/bf16.h"

namespace quads::kernels {

enum class ActivationFormat : uint8_t { kBf16, kFp8, kNvfp4 };

/// How rows of BF16 activations become the operands of a GEMM.
struct QuantizeSpec {
  ActivationFormat format = ActivationFormat::kBf16;
  int64_t k = 0;
  /// Factor on the outputs: activation_scale() of the weights' format (gemm_kernels.h).
  float out_scale = 1.0F;
  /// Residual compensation: K tiles of 32 (in output order) that x2 covers; 0 for none.
  int64_t residual_tiles = 0;
  /// [k / 16] output position of each natural block of 16; null for identity. Blocks at positions
  /// below 2 * residual_tiles are compensated.
  const int32_t* block_position = nullptr;
  /// [k], natural order, 1 = compensated channel; null: every channel of the compensated blocks.
  const uint8_t* channel_mask = nullptr;
  /// The rule of nvfp4-numerics, `rac-scale-floor`.
  bool scale_floor = false;
};

struct SamplingParams {
  float temperature = 1.0F;  // 0 = greedy
  int32_t top_k = 0;         // 0 = off
  float top_p = 1.0F;        // 1 = off
};

struct RowKernels {
  /// out[r, i] = bf16(x[r, i] * inv_rms[r] * weight[i] * out_scale),
  /// inv_rms = 1 / sqrt(mean(x^2) + eps); the products in this order. inv_rms [rows] may be null.
  /// The mean: 16-lane chains of fused multiply-adds over the row, the tree, divided by float(d).
  void (*rmsnorm)(const float* x, int64_t ldx, int64_t rows, int64_t d, const Bf16* weight,
                  float eps, float out_scale, Bf16* out, int64_t ldo, float* inv_rms);
  /// dx += and dweight[d] +=, from dout FP32 (gradient of the unscaled output).
  void (*rmsnorm_backward)(const float* x, int64_t ldx, const float* inv_rms, int64_t rows,
                           int64_t d, const Bf16* weight, const float* dout, int64_t ldd, float* dx,
                           int64_t lddx, float* dweight);

  /// One row of `heads` vectors of head_dim: optional RMS norm (null weight: none) of each
  /// `norm_heads` of them together (1, or all), weight [norm_heads * head_dim]; then rotate-half
  /// RoPE with cos, sin [head_dim / 2] of the row's position, then BF16.
  /// A pair (a, b) = (y[i], y[i + head_dim / 2]) becomes fma(-b, sin, a * cos), fma(a, sin, b *
  /// cos).
  void (*qk_norm_rope)(const float* in, int64_t heads, int64_t head_dim, const Bf16* weight,
                       int64_t norm_heads, float eps, const float* cos, const float* sin,
                       Bf16* out);
  /// din = (not +=; may be dout itself) from dout; dweight [norm_heads * head_dim] += (null if
  /// there is no norm).
  void (*qk_norm_rope_backward)(const float* in, int64_t heads, int64_t head_dim,
                                const Bf16* weight, int64_t norm_heads, float eps, const float* cos,
                                const float* sin, const float* dout, float* din, float* dweight);

  /// h[r, i] = bf16(silu(gu[r, i]) * gu[r, width + i]), gu [rows, 2 * width] FP32.
  void (*silu_mul)(const float* gu, int64_t ldgu, int64_t rows, int64_t width, Bf16* h,
                   int64_t ldh);
  /// dgu [rows, 2 * width] BF16 from dh FP32; both halves.
  void (*silu_mul_backward)(const float* gu, int64_t ldgu, const float* dh, int64_t lddh,
                            int64_t rows, int64_t width, Bf16* dgu, int64_t lddgu);

  /// BF16 rows [rows, k] -> q1 [rows, k] (and q2 [rows, 32 * residual_tiles]): the dequantised
  /// values times out_scale, exact in BF16, blocks permuted by block_position. kBf16 copies (times
  /// out_scale, permuted). `stats` [k] (natural order; null: none) accumulates, over the rows with
  /// counted[r] != 0 (null: all), the residual |x - q1| / g in units of 2^-16 (numerics:
  /// residual_units), over all channels whether selected or not. Returns the first row that holds a
  /// NaN or Inf (rows before it are done), -1 if none.
  int64_t (*quantize_rows)(const Bf16* x, int64_t ldx, int64_t rows, const QuantizeSpec& spec,
                           Bf16* q1, int64_t ld1, Bf16* q2, int64_t ld2, int64_t* stats,
                           const uint8_t* counted);
  /// What the operands of quantize_rows stand for, as one BF16 matrix: out [rows, k], in the
  /// natural order of K, = bf16(q1 + q2) in the blocks that q2 covers, q1 in the others.
  void (*operand_values)(const Bf16* q1, int64_t ld1, const Bf16* q2, int64_t ld2, int64_t rows,
                         const QuantizeSpec& spec, Bf16* out, int64_t ldo);

  /// y[i] = x[i] + sum over s in order of weights[s] * parts[s][i] (fused multiply-adds).
  void (*combine)(const float* x, const float* const* parts, const float* weights, int64_t top_k,
                  int64_t d, float* y);
  float (*dot)(const float* a, const Bf16* b, int64_t n);  // 16-lane chains, then the tree
  /// out = bf16(x * scale)
  void (*to_bf16)(const float* x, int64_t n, float scale, Bf16* out);
  /// y += x
  void (*add)(const float* x, int64_t n, float* y);

  /// Softmax over `experts` logits (FP32, rows ldl apart), the top_k largest (ties to the lower
  /// index) in falling order, their probabilities as weights, divided by their sum if `normalise`.
  /// With `forced` ids [rows, top_k] (routing replay) those are taken, in the order given.
  void (*route)(const float* logits, int64_t ldl, int64_t rows, int64_t experts, int64_t top_k,
                bool normalise, const int32_t* forced, int32_t* ids, float* weights);
  /// dlogits [rows, experts] (overwritten; rows ldl apart too) from dweights [rows, top_k].
  void (*route_backward)(const float* logits, int64_t ldl, int64_t rows, int64_t experts,
                         int64_t top_k, bool normalise, const int32_t* ids, const float* dweights,
                         float* dlogits);

  /// log(sum(exp(inv_temperature * z))) of one row.
  float (*log_sum_exp)(const float* z, int64_t n, float inv_temperature);
  /// Entropy (nats) of softmax(inv_temperature * z), given its log_sum_exp.
  float (*entropy)(const float* z, int64_t n, float inv_temperature, float lse);
  /// Gradient of dlogp * log softmax(inv_temperature * z)[target] w.r.t. z, as BF16 [n].
  void (*log_softmax_backward)(const float* z, int64_t n, float inv_temperature, float lse,
                               int64_t target, float dlogp, Bf16* dz);
  /// Draws a token from softmax(z / temperature) restricted to top-k, then top-p, by inverting the
  /// cumulative distribution in vocabulary order at `uniform` in [0, 1). Greedy: the first maximum.
  int32_t (*sample)(const float* z, int64_t n, const SamplingParams& params, float uniform,
                    Arena& arena);

  /// One AdamW step (decoupled decay) on n elements; value = bf16(master). Returns nothing.
  void (*adamw)(int64_t n, const AdamwParams& params, const float* grad, float* master, float* m,
                float* v, Bf16* value);
  /// Sum of squares in double, 16 lanes then the tree.
  double (*sum_of_squares)(const float* x, int64_t n);
};

}  // namespace quads::kernels
