#include "ops/experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/linear.h"
#include "ops/experts_backward.h"
#include "ops/experts_call.h"
#include "ops/packed_weight.h"
#include "ops/parallel.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

using kernels::WeightFormat;

namespace {

constexpr int64_t kExpertBlock = 64;  // rows of one expert that a task takes through both products
constexpr int64_t kRowBlock = 32;

// The rows of `slots`, one after another.
const Bf16* gather(const Bf16* rows, int64_t k, const int64_t* slots, int64_t count, int64_t top_k,
                   Arena& arena) {
  Bf16* out = arena.alloc<Bf16>(count * k);
  for (int64_t i = 0; i < count; ++i) std::copy_n(rows + slots[i] / top_k * k, k, out + i * k);
  return out;
}

}  // namespace

at::Tensor grouped_experts(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                           const at::Tensor& topk_ids, const at::Tensor& topk_weights,
                           const ExpertsOptions& options) {
  const ExpertsCall call =
      check_experts(x, gate_up, down, topk_ids, topk_weights, options, at::kCPU);
  const int64_t hidden = call.hidden, width = call.width, top_k = call.top_k;
  const SlotsByExpert sorted = sort_by_expert(topk_ids, call);
  const WeightFormat format = call.weights;
  const PackedWeight packed_gate_up(gate_up, format, "grouped_experts: gate_up");
  const PackedWeight packed_down(down, format, "grouped_experts: down");
  const float out_scale = kernels::activation_scale(format);
  const kernels::QuantizeSpec input_spec =
      make_spec(hidden, call.activations, call.gate_up_mask, out_scale);
  const kernels::QuantizeSpec middle_spec =
      make_spec(width, call.activations, call.down_mask, out_scale);

  struct Task {
    int64_t expert, begin, end;
  };
  std::vector<Task> tasks;
  for (int64_t e = 0; e < call.experts; ++e) {
    const int64_t end = sorted.offsets[static_cast<size_t>(e + 1)];
    for (int64_t b = sorted.offsets[static_cast<size_t>(e)]; b < end; b += kExpertBlock) {
      tasks.push_back({e, b, std::min(b + kExpertBlock, end)});
    }
  }
  const at::Tensor parts = at::empty({call.tokens * top_k, hidden}, at::kFloat);  // by slot
  auto* part = parts.mutable_data_ptr<float>();
  const Bf16* rows = bf16_data(x);
  parallel_tasks(std::ssize(tasks), [&](const kernels::CpuContext& context, int64_t t) {
    const Task& task = tasks[static_cast<size_t>(t)];
    const int64_t count = task.end - task.begin;
    const int64_t* slots = sorted.slots.data() + task.begin;
    Arena& arena = context.arena();
    const ArenaScope scope(arena);
    const Bf16* in = gather(rows, hidden, slots, count, top_k, arena);
    const kernels::Operand input = kernels::quantize(context, input_spec, in, hidden, count,
                                                     nullptr, nullptr, "grouped_experts: x", arena);
    float* gu = arena.alloc<float>(count * 2 * width);
    kernels::linear(context, input, count, packed_gate_up.matrix(task.expert), gu, 2 * width);
    Bf16* h = arena.alloc<Bf16>(count * width);
    context.rows().silu_mul(gu, 2 * width, count, width, h, width);
    const kernels::Operand middle =
        kernels::quantize(context, middle_spec, h, width, count, nullptr, nullptr,
                          "grouped_experts: intermediate activation", arena);
    float* out = arena.alloc<float>(count * hidden);
    kernels::linear(context, middle, count, packed_down.matrix(task.expert), out, hidden);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(out + i * hidden, hidden, part + slots[i] * hidden);
    }
  });

  at::Tensor y = at::empty_like(x);
  Bf16* result = mutable_bf16_data(y);
  const auto* weights = topk_weights.const_data_ptr<float>();
  parallel_rows(call.tokens, kRowBlock,
                [&](const kernels::CpuContext& context, int64_t begin, int64_t count) {
                  std::vector<const float*> choices(static_cast<size_t>(top_k));
                  const std::vector<float> zeros(static_cast<size_t>(hidden), 0.0F);
                  std::vector<float> sum(static_cast<size_t>(hidden));
                  for (int64_t r = begin; r < begin + count; ++r) {
                    for (int64_t s = 0; s < top_k; ++s) {
                      choices[static_cast<size_t>(s)] = part + (r * top_k + s) * hidden;
                    }
                    context.rows().combine(zeros.data(), choices.data(), weights + r * top_k, top_k,
                                           hidden, sum.data());
                    context.rows().to_bf16(sum.data(), hidden, 1.0F, result + r * hidden);
                  }
                });
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> grouped_experts_backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
    const at::Tensor& topk_ids, const at::Tensor& topk_weights, const ExpertsOptions& options) {
  const ExpertsCall call =
      check_experts(x, gate_up, down, topk_ids, topk_weights, options, at::kCPU);
  SlotsByExpert sorted = sort_by_expert(topk_ids, call);
  return experts_gradients(
      dy, x, topk_weights, call, sorted,
      {.gate_up = fake_quantize_weight(gate_up, call.weights, "grouped_experts: gate_up"),
       .down = fake_quantize_weight(down, call.weights, "grouped_experts: down"),
       .input = quantize_rows(x, call.activations, call.gate_up_mask, 1.0F, "grouped_experts: x"),
       .middle = [&](const at::Tensor& h) {
         return quantize_rows(h, call.activations, call.down_mask, 1.0F,
                              "grouped_experts: intermediate");
       }});
}

}  // namespace quads::ops
