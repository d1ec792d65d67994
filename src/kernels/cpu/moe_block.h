// The feed-forward block of a transformer layer on a CPU, forward and backward:
//   y = x + sum over the top-k experts e of w_e * down_e(silu(gate_e h) * up_e h),  h = RMSNorm(x),
// and, where there is a shared expert, its sigmoid(gate . h) * down(silu(gate h) * up h) added
// last. A dense feed-forward layer is the same with one expert, no router and weight 1.
#pragma once

#include "kernels/cpu/linear.h"

namespace quads::kernels {

struct MoeBlock {
  int64_t hidden;
  int64_t width;    // of one expert
  int64_t experts;  // that are routed to
  int64_t top_k;
  bool normalise_weights;  // norm_topk_prob
  float rms_eps;
  const Bf16* norm;  // [hidden]
  /// [router_rows(), hidden] BF16, the last row the shared expert's gate; null: dense.
  const PackedMatrix* router;
  const PackedMatrix* gate_up;  // [experts] matrices [2 * width, hidden], gate rows first
  const PackedMatrix* down;     // [experts] matrices [hidden, width]
  QuantizeSpec gate_up_input;
  QuantizeSpec down_input;

  /// The shared expert, which every row goes through: its matrices follow the experts' in gate_up
  /// and down. Its input is quantised as the experts' is, or not at all. Width 0: none.
  int64_t shared_width;
  QuantizeSpec shared_gate_up_input;
  QuantizeSpec shared_down_input;

  bool has_shared() const { return shared_width > 0; }
  int64_t router_rows() const { return experts + (has_shared() ? 1 : 0); }
};

struct MoeStats {
  ResidualStats gate_up, down, shared_down;
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
  float* const* gate_up;  // as the block's
  float* const* down;
};

/// BF16 transposes of the (dequantised) weights.
struct MoeTransposed {
  const PackedMatrix* router;   // [hidden, router_rows() rounded up to 32]; null when dense
  const PackedMatrix* gate_up;  // as the block's, matrices [hidden, 2 * width]
  const PackedMatrix* down;     // matrices [width, hidden]
};

/// dx [rows, hidden] (overwritten; must not be dy) from dy; recomputes the forward from x.
void moe_backward(const CpuContext& context, const MoeBlock& block, const MoeTransposed& transposed,
                  int64_t rows, const MoeRouting& routing, const float* x, const float* dy,
                  const MoeGrads& grads, float* dx);

}  // namespace quads::kernels
