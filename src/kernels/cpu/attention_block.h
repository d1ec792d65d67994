// The attention block of a transformer layer on a CPU, forward and backward:
//   y = x + O(attention(RoPE(norm(Q h + b)), RoPE(norm(K h + b)), V h + b)),  h = RMSNorm(x),
// where the norm and the biases are optional.
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
  const Bf16* norm;      // [hidden]
  LinearLayer qkv;       // [(heads + 2 kv_heads) * head_dim, hidden]
  const Bf16* qkv_bias;  // [qkv_width]; null: none
  bool whole_qk_norm;    // q_norm and k_norm span all heads together, not each head
  const Bf16* q_norm;    // [q_norm_width()]; null: none
  const Bf16* k_norm;    // [k_norm_width()]
  LinearLayer out;       // [hidden, heads * head_dim]
  int64_t q_width() const { return shape.heads * shape.head_dim; }
  int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  /// Heads that one norm takes together.
  int64_t q_norm_heads() const { return whole_qk_norm ? shape.heads : 1; }
  int64_t k_norm_heads() const { return whole_qk_norm ? shape.kv_heads : 1; }
  int64_t q_norm_width() const { return q_norm_heads() * shape.head_dim; }
  int64_t k_norm_width() const { return k_norm_heads() * shape.head_dim; }
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

/// Adds the bias, if there is one, to a row of the qkv product.
void add_qkv_bias(const AttentionBlock& block, float* qkv);

/// y [rows, hidden] FP32 from x; y may be x.
void attention_forward(const CpuContext& context, const AttentionBlock& block,
                       const AttentionRows& rows, const AttentionStats& stats, const float* x,
                       float* y);

/// Gradients are added (+=), FP32, shapes as the weights. Weight matrices have their rows padded to
/// a multiple of 32.
struct AttentionGrads {
  float* norm;
  float* qkv;
  float* qkv_bias;  // this and the next are null with the block's
  float* q_norm;
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
