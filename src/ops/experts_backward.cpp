#include "ops/experts_backward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "ops/matmul.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> experts_gradients(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& topk_weights,
    const ExpertsCall& call, SlotsByExpert& sorted, const ExpertsOperands& operands) {
  require(dy.sizes() == x.sizes() && dy.scalar_type() == at::kBFloat16,
          "grouped_experts_backward: dy is {}; it must be {}", describe(dy), describe(x));
  const int64_t width = call.width;
  const at::Tensor slots =
      at::from_blob(sorted.slots.data(), {topk_weights.numel()}, at::kLong).to(x.device());
  const at::Tensor dx = at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  const at::Tensor dgate_up = at::zeros_like(operands.gate_up);
  const at::Tensor ddown = at::zeros_like(operands.down);
  const at::Tensor dweights = at::zeros({topk_weights.numel()}, topk_weights.options());  // by slot
  for (int64_t e = 0; e < call.experts; ++e) {
    const int64_t begin = sorted.offsets[static_cast<size_t>(e)];
    const int64_t count = sorted.offsets[static_cast<size_t>(e + 1)] - begin;
    if (count == 0) continue;
    const at::Tensor slot = slots.narrow(0, begin, count);
    const at::Tensor token = slot.floor_divide(call.top_k);
    const at::Tensor weight = topk_weights.view({-1}).index_select(0, slot).unsqueeze(1);
    // x W^T and dy^T x over both operands of a compensated product.
    const auto take = [&](const at::Tensor& q) {
      return q.defined() ? q.index_select(0, token) : at::Tensor();
    };
    const at::Tensor x1 = take(operands.input.q1), x2 = take(operands.input.q2);
    const at::Tensor w_gate_up = operands.gate_up[e], w_down = operands.down[e];
    at::Tensor gu = product_f32(x1, w_gate_up.t());
    if (x2.defined()) gu.add_(product_f32(x2, w_gate_up.t()));
    const at::Tensor gate = gu.narrow(1, 0, width), up = gu.narrow(1, width, width);
    const at::Tensor sigmoid = at::sigmoid(gate);
    const at::Tensor h = (gate * sigmoid * up).to(at::kBFloat16);
    const QuantizedRows middle = operands.middle(h);
    at::Tensor h_sum = middle.q1.to(at::kFloat);
    if (middle.q2.defined()) h_sum.add_(middle.q2);

    const at::Tensor dy_rows = dy.index_select(0, token);
    const at::Tensor dout = (dy_rows * weight).to(at::kBFloat16);
    at::Tensor ddown_e = product_f32(dout.t(), middle.q1);
    if (middle.q2.defined()) ddown_e.add_(product_f32(dout.t(), middle.q2));
    ddown[e].copy_(ddown_e);
    // Without the routing weight: its product with h is the weight's gradient.
    const at::Tensor dh_plain = product_f32(dy_rows, w_down);
    dweights.index_copy_(0, slot, (dh_plain * h_sum).sum(1));
    const at::Tensor dh = dh_plain * weight;
    at::Tensor dgu = at::empty_like(gu);
    dgu.narrow(1, 0, width).copy_(dh * up * sigmoid * (1 + gate * (1 - sigmoid)));
    dgu.narrow(1, width, width).copy_(dh * gate * sigmoid);
    dgu = dgu.to(at::kBFloat16);
    at::Tensor dgate_up_e = product_f32(dgu.t(), x1);
    if (x2.defined()) dgate_up_e.add_(product_f32(dgu.t(), x2));
    dgate_up[e].copy_(dgate_up_e);
    dx.index_add_(0, token, product_f32(dgu, w_gate_up));
  }
  return {dx.to(at::kBFloat16), dgate_up, ddown, dweights.view(topk_weights.sizes())};
}

}  // namespace quads::ops
