// The gradients of grouped_experts by ATen's products, expert by expert, whatever the device.
#pragma once

#include <functional>

#include "ops/experts_call.h"
#include "ops/fake_quantize.h"

namespace quads::ops {

/// What a device makes in its own way.
struct ExpertsOperands {
  at::Tensor gate_up, down;  // dequantised, BF16, of the weights' shapes
  QuantizedRows input;       // x as the forward multiplies it
  /// The intermediate activation h [rows, width] BF16, likewise.
  std::function<QuantizedRows(const at::Tensor& h)> middle;
};

/// Gradients of x, gate_up, down (BF16) and topk_weights (FP32); recomputes the forward.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> experts_gradients(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& topk_weights,
    const ExpertsCall& call, SlotsByExpert& sorted, const ExpertsOperands& operands);

}  // namespace quads::ops
