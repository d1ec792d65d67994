// The CUDA kernels of torch.ops.quads (ops/register.cpp has the schemas).
#include <torch/library.h>

#include "base/error.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/native_fp4.h"
#include "ops/cuda/quantize.h"
#include "ops/operators.h"

namespace quads::ops {
namespace {

template <kernels::WeightFormat kWeight, kernels::ActivationFormat kActivation>
at::Tensor fake_quantize(const at::Tensor& x, std::string_view mode) {
  if (mode == "weight") return fake_quantize_weight_cuda(x, kWeight, "fake_quantize: x");
  if (mode == "activation") {
    return fake_quantize_activation_cuda(x, kActivation, "fake_quantize: x");
  }
  fail("fake_quantize: mode is '{}'; it must be weight or activation", mode);
}

at::Tensor run_grouped_experts(const at::Tensor& x, const at::Tensor& gate_up,
                               const at::Tensor& down, const at::Tensor& topk_ids,
                               const at::Tensor& topk_weights, std::string_view precision,
                               const OptionalTensor& gate_up_mask,
                               const OptionalTensor& down_mask) {
  return grouped_experts_cuda(x, gate_up, down, topk_ids, topk_weights,
                              {precision, gate_up_mask, down_mask});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> run_grouped_experts_backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
    const at::Tensor& topk_ids, const at::Tensor& topk_weights, std::string_view precision,
    const OptionalTensor& gate_up_mask, const OptionalTensor& down_mask) {
  return grouped_experts_backward_cuda(dy, x, gate_up, down, topk_ids, topk_weights,
                                       {precision, gate_up_mask, down_mask});
}

at::Tensor run_native_fp4_product(const at::Tensor& codes, const at::Tensor& block_scales,
                                  const at::Tensor& row_scales, const at::Tensor& weight_codes,
                                  const at::Tensor& weight_block_scales,
                                  const at::Tensor& weight_global_scales,
                                  const at::Tensor& offsets) {
  return native_fp4_product_cuda({codes, block_scales, row_scales, weight_codes,
                                  weight_block_scales, weight_global_scales, offsets});
}

}  // namespace

TORCH_LIBRARY_IMPL(quads, CUDA, m) {
  using A = kernels::ActivationFormat;
  using W = kernels::WeightFormat;
  m.impl("quantize_nvfp4", &quantize_nvfp4_cuda);
  m.impl("dequantize_nvfp4", &dequantize_nvfp4_cuda);
  m.impl("fake_quantize_nvfp4", &fake_quantize<W::kNvfp4, A::kNvfp4>);
  m.impl("fake_quantize_fp8", &fake_quantize<W::kFp8, A::kFp8>);
  m.impl("rac_mask", &rac_mask_cuda);
  m.impl("linear_nvfp4", &linear_nvfp4_cuda);
  m.impl("linear_nvfp4_backward", &linear_nvfp4_backward_cuda);
  m.impl("grouped_experts", &run_grouped_experts);
  m.impl("grouped_experts_backward", &run_grouped_experts_backward);
  m.impl("native_fp4_weight", &native_fp4_weight_cuda);
  m.impl("native_fp4_rows", &native_fp4_rows_cuda);
  m.impl("native_fp4_product", &run_native_fp4_product);
}

}  // namespace quads::ops
