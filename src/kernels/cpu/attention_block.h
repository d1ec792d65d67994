// The attention block of a transformer layer on a CPU, forward and backward:
//   y = x + O(attention(RoPE(norm(Q h)), RoPE(norm(K h)), V h)),  h = RMSNorm(x).
// The forward serves decoding, prefill and training alike; rows are told apart by their position
// and their sequence's KV pages only. The backward recomputes the forward from x.
#pragma once

#include "kernels/cpu/linear.h"

namespace quads::kernels {

/// One linear layer of a side (rollout or trainer): its weight and how its input is quantised.
struct LinearLayer {
  PackedMatrix weight;
  QuantizeSpec input;
};

struct AttentionBlock {
  int64_t hidden;
  AttentionShape shape;
  float rms_eps;
  const Bf16* norm;    // [hidden]
  LinearLayer qkv;     // [(heads + 2 kv_heads) * head_dim, hidden]
  const Bf16* q_norm;  // [head_dim]; null: none
  const Bf16* k_norm;
  LinearLayer out;  // [hidden, heads * head_dim]
  int64_t q_width() const { return shape.heads * shape.head_dim; }
  int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

/// The rows of a batch and where their sequences keep keys and values. Page p of this layer starts
/// at kv + p * page_stride (elements). Rows of one sequence are in rising position order, and every
/// earlier position is in the pages or in this batch.
struct AttentionRows {
  int64_t rows = 0;
  const int64_t* positions = nullptr;        // [rows]
  const int32_t* const* page_ids = nullptr;  // [rows] -> page ids of the row's sequence
  Bf16* kv = nullptr;
  int64_t page_stride = 0;
  const float* cos = nullptr;  // [positions][head_dim / 2]
  const float* sin = nullptr;
};

struct AttentionStats {
  ResidualStats qkv, out;
};

/// y [rows, hidden] FP32 from x; y may be x.
void attention_forward(const CpuContext& context, const AttentionBlock& block,
                       const AttentionRows& rows, const AttentionStats& stats, const float* x,
                       float* y);

/// Gradients are added (+=), FP32, shapes as the weights. Weight matrices have their rows padded to
/// a multiple of 32.
struct AttentionGrads {
  float* norm;
  float* qkv;
  float* q_norm;  // null with the block's
  float* k_norm;
  float* out;
};

/// BF16 transposes of the (dequantised) weights.
struct AttentionTransposed {
  PackedMatrix qkv;  // [hidden, qkv_width]
  PackedMatrix out;  // [q_width, hidden]
};

/// dx [rows, hidden] (overwritten; must not be dy) from dy. Packed sequences: cu_seqlens
/// [sequences + 1] row offsets, positions from 0 in each. `rows.kv` is scratch that holds the
/// pages.
void attention_backward(const CpuContext& context, const AttentionBlock& block,
                        const AttentionTransposed& transposed, const AttentionRows& rows,
                        const int64_t* cu_seqlens, int64_t sequences, const float* x,
                        const float* dy, const AttentionGrads& grads, float* dx);

}  // namespace quads::kernels
