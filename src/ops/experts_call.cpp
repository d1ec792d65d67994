#include "ops/experts_call.h"

#include "ops/tensor_checks.h"

namespace quads::ops {

using kernels::ActivationFormat;
using kernels::WeightFormat;

namespace {

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

}  // namespace

ExpertsCall check_experts(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                          const at::Tensor& ids, const at::Tensor& weights,
                          const ExpertsOptions& options, const at::Device& device) {
  ExpertsCall call{};
  const Formats formats = parse_formats(options.precision);
  call.weights = formats.weights;
  call.activations = formats.activations;
  require_rows(x, at::kBFloat16, 2, 32, "grouped_experts: x", device);
  require_rows(gate_up, at::kBFloat16, 3, 32, "grouped_experts: gate_up", device);
  require_rows(down, at::kBFloat16, 3, 32, "grouped_experts: down", device);
  require_tensor(ids, at::kLong, "grouped_experts: topk_ids", device);
  require_tensor(weights, at::kFloat, "grouped_experts: topk_weights", device);
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
  const bool quantised = call.activations == ActivationFormat::kNvfp4;
  const auto take_mask = [&](const std::optional<at::Tensor>& mask, int64_t k,
                             std::string_view where) -> at::Tensor {
    if (!mask) return {};
    require(quantised, "{} compensates NVFP4 activations; precision {} has none", where,
            options.precision);
    require_mask(*mask, k, where, device);
    return *mask;
  };
  call.gate_up_mask = take_mask(options.gate_up_mask, call.hidden, "grouped_experts: gate_up_mask");
  call.down_mask = take_mask(options.down_mask, call.width, "grouped_experts: down_mask");
  return call;
}

SlotsByExpert sort_by_expert(const at::Tensor& ids, const ExpertsCall& call) {
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

}  // namespace quads::ops
