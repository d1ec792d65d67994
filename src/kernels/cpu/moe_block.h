// The feed-forward block of a transformer layer on a CPU, forward and backward:
//   y = x + sum over the top-k experts e of w_e * down_e(silu(gate_e h) * up_e h),  h = RMSNorm(x).
// A dense feed-forward layer is the same with one expert, no router and weight 1.
#pragma once

#include "kernels/cpu/linear.h"

namespace quads::kernels {

struct MoeBlock {
  int64_t hidden;
  int64_t width;  // of one expert
  int64_t experts;
  int64_t top_k;
  bool normalise_weights;  // norm_topk_prob
  float rms_eps;
  const Bf16* norm;             // [hidden]
  const PackedMatrix* router;   // [experts, hidden] BF16; null: dense
  const PackedMatrix* gate_up;  // [experts] matrices [2 * width, hidden], gate rows first
  const PackedMatrix* down;     // [experts] matrices [hidden, width]
  QuantizeSpec gate_up_input;
  QuantizeSpec down_input;
};

struct MoeStats {
  ResidualStats gate_up, down;
};

/// Which experts took each row. Either may be null.
struct MoeRouting {
  const int32_t* replay = nullptr;  // [rows, top_k] experts to use instead of the router's choice
  int32_t* record = nullptr;        // [rows, top_k] experts used
};

/// y [rows, hidden] FP32 from x; y may be x.
void moe_forward(const CpuContext& context, const MoeBlock& block, int64_t rows,
                 const MoeRouting& routing, const MoeStats& stats, const float* x, float* y);

/// Gradients are added (+=), FP32. The router's rows are padded to a multiple of 32.
struct MoeGrads {
  float* norm;
  float* router;          // null when dense
  float* const* gate_up;  // [experts]
  float* const* down;     // [experts]
};

/// BF16 transposes of the (dequantised) weights.
struct MoeTransposed {
  const PackedMatrix* router;   // [hidden, experts rounded up to 32]; null when dense
  const PackedMatrix* gate_up;  // [experts] matrices [hidden, 2 * width]
  const PackedMatrix* down;     // [experts] matrices [width, hidden]
};

/// dx [rows, hidden] (overwritten; must not be dy) from dy; recomputes the forward from x.
void moe_backward(const CpuContext& context, const MoeBlock& block, const MoeTransposed& transposed,
                  int64_t rows, const MoeRouting& routing, const float* x, const float* dy,
                  const MoeGrads& grads, float* dx);

}  // namespace quads::kernels
