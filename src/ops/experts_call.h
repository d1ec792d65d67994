// The checked arguments of grouped_experts, whatever the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/row_kernels.h"
#include "ops/experts.h"

namespace quads::ops {

struct ExpertsCall {
  kernels::WeightFormat weights;
  kernels::ActivationFormat activations;
  at::Tensor gate_up_mask, down_mask;  // undefined without compensation
  int64_t tokens, hidden, width, experts, top_k;
};

/// Error unless the arguments fit, on `device`. The values of topk_ids are not looked at.
ExpertsCall check_experts(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                          const at::Tensor& topk_ids, const at::Tensor& topk_weights,
                          const ExpertsOptions& options, const at::Device& device);

/// Slots (token, choice) sorted by expert, in slot order within one. slot = token * top_k + choice.
struct SlotsByExpert {
  std::vector<int64_t> slots;    // [tokens * top_k]
  std::vector<int64_t> offsets;  // [experts + 1]
};

/// Of topk_ids on the CPU. Error on an id that is not an expert's.
SlotsByExpert sort_by_expert(const at::Tensor& topk_ids, const ExpertsCall& call);

}  // namespace quads::ops
