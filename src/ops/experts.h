// The routed experts of an MoE layer, grouped by expert, in any of the precisions, and their
// straight-through gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace quads::ops {

/// Beyond the tensors, what the product is made with.
struct ExpertsOptions {
  /// "bf16", "fp8" (W8A8), "w8a16", "nvfp4" (W4A4), "w4a16" or "w16a4".
  std::string_view precision;
  /// Compensated channels of the two inputs, bool [hidden] and [width]; need NVFP4 activations.
  std::optional<at::Tensor> gate_up_mask, down_mask;
};

/// y[t] = sum over s of topk_weights[t, s] * down_e(silu(gate_e x[t]) * up_e x[t]), e = topk_ids[t,
/// s]. BF16 x [tokens, hidden], gate_up [experts, 2 * width, hidden] (gate rows first), down
/// [experts, hidden, width]; topk_ids int64 and topk_weights FP32 [tokens, top_k]. hidden and width
/// are multiples of 32. Sums are FP32, y is BF16 [tokens, hidden]; y[t] depends on token t alone.
at::Tensor grouped_experts(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                           const at::Tensor& topk_ids, const at::Tensor& topk_weights,
                           const ExpertsOptions& options);

/// Gradients of x, gate_up, down (BF16) and topk_weights (FP32); recomputes the forward.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> grouped_experts_backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
    const at::Tensor& topk_ids, const at::Tensor& topk_weights, const ExpertsOptions& options);

}  // namespace quads::ops
