// Contract of causal attention over paged keys and values, for one query row: decoding and the
// forward over packed sequences call the same function, so they give the same bits.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "numerics/bf16.h"

namespace quads::kernels {

/// Positions of a KV page.
inline constexpr int64_t kPageSize = 16;

struct AttentionShape {
  int64_t heads, kv_heads, head_dim;  // heads % kv_heads == 0; head_dim % 16 == 0
  float scale;                        // 1 / sqrt(head_dim)
  /// BF16 elements of one layer's page: [kv_heads][K: head_dim x 16 | V: 16 x head_dim].
  int64_t page_elements() const { return kv_heads * 2 * kPageSize * head_dim; }
};

/// Writes one position's key and value [kv_heads, head_dim] into slot `position % 16` of its page.
void store_kv(const AttentionShape& shape, const Bf16* key, const Bf16* value, int64_t slot,
              Bf16* page);

struct AttentionKernels {
  /// out [heads * head_dim] FP32 for query q [heads * head_dim] over positions 0..context-1 held in
  /// pages[0..]. Per head: s_j = scale * (q . k_j), one FP32 FMA chain over the dimensions in
  /// order; m = max s_j; p_j = bf16(exp(s_j - m)) (the rounding a tensor core's operand needs); l =
  /// sum of the rounded p_j over 16 lanes by j % 16, then the tree; out = (sum of p_j v_j, one
  /// chain over j in order) / l.
  void (*attend)(const AttentionShape& shape, const Bf16* q, const Bf16* const* pages,
                 int64_t context, Arena& arena, float* out);
  /// Gradients of one whole sequence of n positions (causal): q [n, heads * head_dim] BF16, dout
  /// FP32 of the same shape; dq like q, dk and dv [n, kv_heads * head_dim], all overwritten, dense
  /// rows. Recomputes the probabilities; the rounding of p passes straight through. With P_ij =
  /// p_ij / l_i and dP_ij = dout_i . v_j: dv_j = sum_i P_ij dout_i, ds_ij = scale P_ij (dP_ij -
  /// sum_j P_ij dP_ij), dq_i = sum_j ds_ij k_j, dk_j = sum_i ds_ij q_i; sums over the query heads
  /// of a group and rows i in order (head by head). Scratch grows with n, not with its square.
  void (*attend_backward)(const AttentionShape& shape, const Bf16* q, const Bf16* const* pages,
                          int64_t n, const float* dout, Arena& arena, float* dq, float* dk,
                          float* dv);
};

}  // namespace quads::kernels
