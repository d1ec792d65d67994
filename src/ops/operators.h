// Signatures of the registered operators, for calls through PyTorch's dispatcher, so that tracing,
// autograd and other devices see them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace quads::ops {

using OptionalTensor = std::optional<at::Tensor>;

using FakeQuantize = at::Tensor(const at::Tensor& x, std::string_view mode);
using LinearNvfp4 = at::Tensor(const at::Tensor& x, const at::Tensor& weight,
                               const OptionalTensor& channel_mask, bool weight_only);
using LinearNvfp4Backward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& dy,
                                                               const at::Tensor& x,
                                                               const at::Tensor& weight,
                                                               const OptionalTensor& channel_mask,
                                                               bool weight_only);
using GroupedExperts = at::Tensor(const at::Tensor& x, const at::Tensor& gate_up,
                                  const at::Tensor& down, const at::Tensor& topk_ids,
                                  const at::Tensor& topk_weights, std::string_view precision,
                                  const OptionalTensor& gate_up_mask,
                                  const OptionalTensor& down_mask);
using GroupedExpertsBackward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
    const at::Tensor& topk_ids, const at::Tensor& topk_weights, std::string_view precision,
    const OptionalTensor& gate_up_mask, const OptionalTensor& down_mask);

}  // namespace quads::ops
