#include "ops/cuda/experts.h"

#include <ATen/ops/empty_like.h>

#include "base/error.h"
#include "kernels/cuda/rows/token_rows.h"
#include "ops/cuda/operands.h"
#include "ops/experts_backward.h"

namespace quads::ops {

namespace cuda = kernels::cuda;
using cuda::GemmOutput;
using cuda::WeightFormat;

namespace {

struct Inputs {
  Compensation gate_up, down;
};

Inputs make_inputs(const DeviceCall& device, const ExpertsCall& call) {
  const bool masks = call.gate_up_mask.defined() || call.down_mask.defined();
  require(!masks || call.weights == kernels::WeightFormat::kNvfp4,
          "grouped_experts: on a GPU only NVFP4 weights are compensated; use nvfp4, or the CPU");
  return {.gate_up = make_compensation(device, call.gate_up_mask),
          .down = make_compensation(device, call.down_mask)};
}

}  // namespace

at::Tensor grouped_experts_cuda(const at::Tensor& x, const at::Tensor& gate_up,
                                const at::Tensor& down, const at::Tensor& topk_ids,
                                const at::Tensor& topk_weights, const ExpertsOptions& options) {
  const DeviceCall device(x);
  const ExpertsCall call =
      check_experts(x, gate_up, down, topk_ids, topk_weights, options, device.device());
  sort_by_expert(topk_ids.cpu(), call);  // for its errors
  const Inputs inputs = make_inputs(device, call);
  const WeightFormat format = cuda_format(call.weights);
  const WeightFormat activations = cuda_format(call.activations);
  const DeviceWeights packed_gate_up =
      pack_weights(device, gate_up, format, inputs.gate_up, true, "grouped_experts: gate_up");
  const DeviceWeights packed_down =
      pack_weights(device, down, format, inputs.down, false, "grouped_experts: down");
  at::Tensor y = at::empty_like(x);
  if (topk_ids.numel() == 0) return y.zero_();

  const Places places =
      sort_by_expert(device, topk_ids.to(at::kInt).contiguous(), static_cast<int>(call.experts));
  const BadRow bad_token(device), bad_middle(device);
  const DeviceImage tokens = quantize_image(device, aligned(x), places, places.image_rows,
                                            places.copies, activations, inputs.gate_up, bad_token);
  const at::Tensor expanded = multiply(device, packed_gate_up, tokens, places, GemmOutput::kSilu);
  const DeviceImage middle = quantize_image(device, expanded, places, places.sorted_image_rows, 1,
                                            activations, inputs.down, bad_middle);
  const at::Tensor parts = multiply(device, packed_down, middle, places, GemmOutput::kFp32);
  const at::Tensor dense =  // without the rows that fill the last tile
      packed_down.padded_n == call.hidden ? parts : parts.narrow(1, 0, call.hidden).contiguous();
  const at::Tensor sums = device.zeros(x.sizes(), at::kFloat);
  const at::Tensor weights = aligned(topk_weights);
  cuda::combine_rows(device.context(), {.x = device_data<float>(sums),
                                        .parts = device_data<float>(dense),
                                        .sorted_rows = device_data<int32_t>(places.sorted_rows),
                                        .weights = device_data<float>(weights),
                                        .rows = call.tokens,
                                        .d = call.hidden,
                                        .top_k = places.copies,
                                        .y = mutable_device_data<float>(sums)});
  bad_token.check("grouped_experts: x");
  bad_middle.check("grouped_experts: intermediate activation, rows sorted by expert");
  return y.copy_(sums);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> grouped_experts_backward_cuda(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
    const at::Tensor& topk_ids, const at::Tensor& topk_weights, const ExpertsOptions& options) {
  const DeviceCall device(x);
  const ExpertsCall call =
      check_experts(x, gate_up, down, topk_ids, topk_weights, options, device.device());
  SlotsByExpert sorted = sort_by_expert(topk_ids.cpu(), call);
  const Inputs inputs = make_inputs(device, call);
  const WeightFormat format = cuda_format(call.weights);
  const WeightFormat activations = cuda_format(call.activations);
  const auto dequantized = [&](const at::Tensor& w, std::string_view where) {
    return dequantize(device, pack_weights(device, w, format, {}, false, where));
  };
  const BadRow bad_token(device), bad_middle(device);
  ExpertsOperands operands;
  operands.gate_up = dequantized(gate_up, "grouped_experts: gate_up");
  operands.down = dequantized(down, "grouped_experts: down");
  operands.input = quantized_values(device, x, activations, inputs.gate_up, bad_token);
  operands.middle = [&](const at::Tensor& h) {
    return quantized_values(device, h, activations, inputs.down, bad_middle);
  };
  auto gradients = experts_gradients(dy, x, topk_weights, call, sorted, operands);
  bad_token.check("grouped_experts: x");
  bad_middle.check("grouped_experts: intermediate activation, rows sorted by expert");
  return gradients;
}

}  // namespace quads::ops
