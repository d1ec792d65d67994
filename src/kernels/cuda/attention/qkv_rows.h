// What lies between the qkv product and attention: QK norm, RoPE, rounding, keys and values to
// their pages. The bits are those of the CPU's RowKernels::qk_norm_rope and to_bf16.
#pragma once

#include "kernels/cuda/attention/kv_pages.h"
#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

/// Device pointers, 16-byte aligned. Per row: q and k are normalised (each head, or all heads
/// together: 1 / sqrt(mean(x^2) + eps) times the weight), rotated by the tables at the row's
/// position and rounded; v is rounded.
struct QkvRows {
  HeadShape shape;
  RowPlaces places;
  const float* qkv = nullptr;    // [rows, qkv_width], bias included
  const Bf16* q_norm = nullptr;  // [head_dim], or [q_width] if whole_norm; null: none
  const Bf16* k_norm = nullptr;  // [head_dim], or [kv_width] if whole_norm
  bool whole_norm = false;       // one norm over all heads together
  float eps = 0.0F;
  const float* cos = nullptr;  // [positions][head_dim / 2]
  const float* sin = nullptr;
  Bf16* q = nullptr;   // [rows, q_width]
  Bf16* kv = nullptr;  // this layer's pages: [pages][page_elements]
};

/// Launches one kernel. Error on sizes out of range. Under overlap the previous kernel must write
/// none of the norms' weights, the tables and the places (but for the row count).
void qkv_rows(const CudaContext& context, const QkvRows& args);

}  // namespace quads::kernels::cuda
