// ops/experts.h on tensors of a GPU, by kernels/cuda; sums are in the order of its products, so
// values are the CPU's but for rounding. hidden and width are at most 16384, top_k at most 32,
// tokens * top_k at most 2^20; only NVFP4 weights are compensated.
#pragma once

#include "ops/experts.h"

namespace quads::ops {

at::Tensor grouped_experts_cuda(const at::Tensor& x, const at::Tensor& gate_up,
                                const at::Tensor& down, const at::Tensor& topk_ids,
                                const at::Tensor& topk_weights, const ExpertsOptions& options);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> grouped_experts_backward_cuda(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
    const at::Tensor& topk_ids, const at::Tensor& topk_weights, const ExpertsOptions& options);

}  // namespace quads::ops
