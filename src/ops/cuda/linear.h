// ops/linear.h on tensors of a GPU, by kernels/cuda's grouped product of one weight; sums are in
// its order, so values are the CPU's but for rounding. k is at most 16384.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace quads::ops {

at::Tensor linear_nvfp4_cuda(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& channel_mask, bool weight_only);
std::tuple<at::Tensor, at::Tensor> linear_nvfp4_backward_cuda(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
    const std::optional<at::Tensor>& channel_mask, bool weight_only);

}  // namespace quads::ops
