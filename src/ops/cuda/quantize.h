// The quantisers of torch.ops.quads on tensors of a GPU; contracts as in ops/nvfp4.h and
// ops/fake_quantize.h, and the bits are the CPU's. Rows have at most 16384 values where they are
// quantised one by one, and there are at most 2^20 of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/row_kernels.h"

namespace quads::ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_nvfp4_cuda(
    const at::Tensor& x, std::optional<double> global_scale);
at::Tensor dequantize_nvfp4_cuda(const at::Tensor& codes, const at::Tensor& block_scales,
                                 const at::Tensor& global_scale);
at::Tensor fake_quantize_activation_cuda(const at::Tensor& x, kernels::ActivationFormat format,
                                         std::string_view where);
at::Tensor fake_quantize_weight_cuda(const at::Tensor& x, kernels::WeightFormat format,
                                     std::string_view where);
at::Tensor rac_mask_cuda(const at::Tensor& x, double ratio, std::string_view granularity);

}  // namespace quads::ops
