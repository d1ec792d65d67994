// A linear layer in NVFP4 with the rollout's arithmetic, and its straight-through gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "ops/fake_quantize.h"

namespace quads::ops {

/// y = (q1 + q2) Wq^T, BF16 [.., n], of x [.., k] and weight [n, k], both BF16, k a multiple of 32:
/// Wq under the weight's own global scale, q1 and q2 under each row's. `channel_mask` [k] bool says
/// which channels are compensated (none without it). `weight_only` multiplies x as it is. A row of
/// y depends on that row of x alone.
at::Tensor linear_nvfp4(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& channel_mask, bool weight_only);

/// The mask, undefined if none was given. Error unless the arguments fit, on `device`.
at::Tensor check_linear(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& channel_mask, bool weight_only,
                        const at::Device& device);

/// dx = dy Wq and dweight = dy^T (q1 + q2) (dy^T x when `weight_only`), BF16.
std::tuple<at::Tensor, at::Tensor> linear_nvfp4_backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
    const std::optional<at::Tensor>& channel_mask, bool weight_only);

/// The same of the dequantised weight and the rows as they were multiplied, whatever the device.
std::tuple<at::Tensor, at::Tensor> linear_gradients(const at::Tensor& dy, const at::Tensor& x,
                                                    const at::Tensor& weight,
                                                    const QuantizedRows& input);

}  // namespace quads::ops
