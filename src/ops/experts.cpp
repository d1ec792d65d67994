#include "ops/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/linear.h"
#include "ops/fake_quantize.h"
#include "ops/matmul.h"
#include "ops/packed_weight.h"
#include "ops/parallel.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

using kernels::ActivationFormat;
using kernels::WeightFormat;

namespace {

constexpr int64_t kExpertBlock = 64;  // rows of one expert that a task takes through both products
constexpr int64_t kRowBlock = 32;

struct Formats {
  WeightFormat weights;
  ActivationFormat activations;
};

Formats parse_formats(std::string_view name) {
  using W = WeightFormat;
  using A = ActivationFormat;
  if (name == "bf16") return {W::kBf16, A::kBf16};
  if (name == "fp8") return {W::kFp8, A::kFp8};
  if (name == "w8a16") return {W::kFp8, A::kBf16};
  if (name == "nvfp4") return {W::kNvfp4, A::kNvfp4};
  if (name == "w4a16") return {W::kNvfp4, A::kBf16};
  if (name == "w16a4") return {W::kBf16, A::kNvfp4};
  fail("grouped_experts: unknown precision '{}': use bf16, fp8, w8a16, nvfp4, w4a16 or w16a4",
       name);
}

// The checked arguments.
struct Call {
  Formats formats;
  at::Tensor gate_up_mask, down_mask;  // undefined without compensation
  int64_t tokens, hidden, width, experts, top_k;
};

Call check(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
           const at::Tensor& ids, const at::Tensor& weights, const ExpertsOptions& options) {
  Call call{};
  call.formats = parse_formats(options.precision);
  require_rows(x, at::kBFloat16, 2, 32, "grouped_experts: x");
  require_rows(gate_up, at::kBFloat16, 3, 32, "grouped_experts: gate_up");
  require_rows(down, at::kBFloat16, 3, 32, "grouped_experts: down");
  require_tensor(ids, at::kLong, "grouped_experts: topk_ids");
  require_tensor(weights, at::kFloat, "grouped_experts: topk_weights");
  require(x.dim() == 2, "grouped_experts: x is {}; it must be [tokens, hidden]", describe(x));
  call.tokens = x.size(0);
  call.hidden = x.size(1);
  call.width = down.size(-1);
  call.experts = gate_up.size(0);
  require(gate_up.dim() == 3 && call.experts > 0 && gate_up.size(1) == 2 * call.width &&
              gate_up.size(2) == call.hidden,
          "grouped_experts: gate_up is {}; for x {} and down {} it must be [experts, {}, {}]",
          describe(gate_up), describe(x), describe(down), 2 * call.width, call.hidden);
  require(down.dim() == 3 && down.size(0) == call.experts && down.size(1) == call.hidden,
          "grouped_experts: down is {}; for gate_up {} it must be [{}, {}, width]", describe(down),
          describe(gate_up), call.experts, call.hidden);
  require(ids.dim() == 2 && ids.size(0) == call.tokens,
          "grouped_experts: topk_ids are {}; for x {} they must be [{}, top_k]", describe(ids),
          describe(x), call.tokens);
  call.top_k = ids.size(1);
  require(weights.sizes() == ids.sizes(),
          "grouped_experts: topk_weights are {}; they must have the shape of topk_ids, {}",
          describe(weights), describe(ids));
  const bool quantised = call.formats.activations == ActivationFormat::kNvfp4;
  const auto take_mask = [&](const std::optional<at::Tensor>& mask, int64_t k,
                             std::string_view where) -> at::Tensor {
    if (!mask) return {};
    require(quantised, "{} compensates NVFP4 activations; precision {} has none", where,
            options.precision);
    require_mask(*mask, k, where);
    return *mask;
  };
  call.gate_up_mask = take_mask(options.gate_up_mask, call.hidden, "grouped_experts: gate_up_mask");
  call.down_mask = take_mask(options.down_mask, call.width, "grouped_experts: down_mask");
  return call;
}

// Slots (token, choice) sorted by expert, in slot order within one. slot = token * top_k + choice.
struct SlotsByExpert {
  std::vector<int64_t> slots;    // [tokens * top_k]
  std::vector<int64_t> offsets;  // [experts + 1]
};

SlotsByExpert sort_by_expert(const at::Tensor& ids, const Call& call) {
  const int64_t* id = ids.const_data_ptr<int64_t>();
  SlotsByExpert sorted;
  sorted.slots.resize(static_cast<size_t>(ids.numel()));
  sorted.offsets.assign(static_cast<size_t>(call.experts + 1), 0);
  for (int64_t slot = 0; slot < ids.numel(); ++slot) {
    require(id[slot] >= 0 && id[slot] < call.experts,
            "grouped_experts: topk_ids[{}, {}] is {}; there are {} experts", slot / call.top_k,
            slot % call.top_k, id[slot], call.experts);
    ++sorted.offsets[static_cast<size_t>(id[slot] + 1)];
  }
  for (size_t e = 1; e < sorted.offsets.size(); ++e) sorted.offsets[e] += sorted.offsets[e - 1];
  std::vector<int64_t> next = sorted.offsets;
  for (int64_t slot = 0; slot < ids.numel(); ++slot) {
    sorted.slots[static_cast<size_t>(next[static_cast<size_t>(id[slot])]++)] = slot;
  }
  return sorted;
}

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
  const Call call = check(x, gate_up, down, topk_ids, topk_weights, options);
  const int64_t hidden = call.hidden, width = call.width, top_k = call.top_k;
  const SlotsByExpert sorted = sort_by_expert(topk_ids, call);
  const WeightFormat format = call.formats.weights;
  const PackedWeight packed_gate_up(gate_up, format, "grouped_experts: gate_up");
  const PackedWeight packed_down(down, format, "grouped_experts: down");
  const float out_scale = kernels::activation_scale(format);
  const kernels::QuantizeSpec input_spec =
      make_spec(hidden, call.formats.activations, call.gate_up_mask, out_scale);
  const kernels::QuantizeSpec middle_spec =
      make_spec(width, call.formats.activations, call.down_mask, out_scale);

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
  const Call call = check(x, gate_up, down, topk_ids, topk_weights, options);
  require(dy.sizes() == x.sizes() && dy.scalar_type() == at::kBFloat16,
          "grouped_experts_backward: dy is {}; it must be {}", describe(dy), describe(x));
  const int64_t width = call.width;
  SlotsByExpert sorted = sort_by_expert(topk_ids, call);
  const at::Tensor slots = at::from_blob(sorted.slots.data(), {topk_ids.numel()}, at::kLong);
  const WeightFormat format = call.formats.weights;
  const ActivationFormat activations = call.formats.activations;
  const at::Tensor wq_gate_up = fake_quantize_weight(gate_up, format, "grouped_experts: gate_up");
  const at::Tensor wq_down = fake_quantize_weight(down, format, "grouped_experts: down");
  const QuantizedRows input =
      quantize_rows(x, activations, call.gate_up_mask, 1.0F, "grouped_experts: x");

  const at::Tensor dx = at::zeros(x.sizes(), at::kFloat);
  const at::Tensor dgate_up = at::zeros(gate_up.sizes(), at::kBFloat16);
  const at::Tensor ddown = at::zeros(down.sizes(), at::kBFloat16);
  const at::Tensor dweights = at::zeros({topk_ids.numel()}, at::kFloat);  // by slot
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
    const at::Tensor x1 = take(input.q1), x2 = take(input.q2);
    const at::Tensor w_gate_up = wq_gate_up[e], w_down = wq_down[e];
    at::Tensor gu = product_f32(x1, w_gate_up.t());
    if (x2.defined()) gu.add_(product_f32(x2, w_gate_up.t()));
    const at::Tensor gate = gu.narrow(1, 0, width), up = gu.narrow(1, width, width);
    const at::Tensor sigmoid = at::sigmoid(gate);
    const at::Tensor h = (gate * sigmoid * up).to(at::kBFloat16);
    const QuantizedRows middle =
        quantize_rows(h, activations, call.down_mask, 1.0F, "grouped_experts: intermediate");
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
  return {dx.to(at::kBFloat16), dgate_up, ddown, dweights.view(topk_ids.sizes())};
}

}  // namespace quads::ops
