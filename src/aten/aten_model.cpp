#include "aten/aten_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>

#include <cmath>

#include "aten/slot_rows.h"
#include "ops/straight_through.h"

namespace quads {
namespace {

// Rotate-half RoPE of x [rows, heads, head_dim] FP32 with cos and sin [rows, 1, head_dim / 2].
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(2) / 2;
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, 2);
}

}  // namespace

at::Tensor AtenModel::norm(const at::Tensor& x, const at::Tensor& weight) const {
  return at::rms_norm(x, {x.size(-1)}, weight, config().rms_norm_eps);
}

at::Tensor AtenModel::quantize(int64_t layer, Site site, const at::Tensor& x,
                               std::string_view where) const {
  const QuantisedSites& sites = device_.sites();
  if (!sites.quantised(layer, site) || sites.precision.activations == Format::kBf16) return x;
  at::Tensor q;
  {
    const at::NoGradGuard no_grad;
    q = device_.fake_quantize(x.detach().contiguous(), sites.precision.activations, where);
  }
  return ops::StraightThrough::apply(x, q);
}

at::Tensor AtenModel::attention(int64_t layer, const SequenceRows& part, const at::Tensor& x,
                                const WeightSource& weight) const {
  const ModelConfig& c = config();
  const ParameterLayout::Layer& at = layer_of(layer);
  const int64_t rows = part.rows, head_dim = c.head_dim;
  const int64_t heads = c.num_attention_heads, kv_heads = c.num_key_value_heads;
  const bool whole_norm = c.qk_norm() == QkNorm::kProjection;

  const at::Tensor h =
      quantize(layer, Site::kAttentionIn, norm(x, weight.of(at.input_norm)).to(at::kBFloat16),
               "attention input");
  at::Tensor product = device_.linear(h, weight.of(at.qkv));
  if (at.qkv_bias >= 0) {
    product = (product.to(at::kFloat) + weight.of(at.qkv_bias)).to(at::kBFloat16);
  }
  const at::Tensor qkv = product.view({rows, heads + 2 * kv_heads, head_dim});
  const auto angles = device_.angles(part);  // cosines, sines
  const auto norm_and_rotate = [&](int64_t first, int64_t count, int64_t norm_weight) {
    at::Tensor x = qkv.narrow(1, first, count).to(at::kFloat);
    if (norm_weight >= 0) {
      const int64_t together = whole_norm ? count : 1;
      x = norm(x.reshape({rows, count / together, together * head_dim}), weight.of(norm_weight))
              .view({rows, count, head_dim});
    }
    return rotate(x, angles.first, angles.second).to(at::kBFloat16);
  };
  const at::Tensor q = norm_and_rotate(0, heads, at.q_norm);
  const at::Tensor k = norm_and_rotate(heads, kv_heads, at.k_norm);
  const at::Tensor v = qkv.narrow(1, heads + kv_heads, kv_heads);
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  const at::Tensor out = device_.attend(q, k, v, part, scale).reshape({rows, heads * head_dim});
  const at::Tensor o = quantize(layer, Site::kAttentionOut, out, "attention output");
  return x + device_.linear(o, weight.of(at.o)).to(at::kFloat);
}

at::Tensor AtenModel::activate(int64_t layer, Site middle, const at::Tensor& gate_up) const {
  const int64_t width = gate_up.size(1) / 2;
  return quantize(layer, middle,
                  device_.silu_mul(gate_up.narrow(1, 0, width), gate_up.narrow(1, width, width)),
                  "intermediate activation");
}

at::Tensor AtenModel::expert(int64_t layer, Site middle, const at::Tensor& input, size_t index,
                             const WeightSource& weight) const {
  const ParameterLayout::Layer& at = layer_of(layer);
  const at::Tensor gate_up = device_.linear(input, weight.of(at.gate_up[index]));
  return device_.linear(activate(layer, middle, gate_up), weight.of(at.down[index])).to(at::kFloat);
}

at::Tensor AtenModel::routed(int64_t layer, const at::Tensor& input, const at::Tensor& ids,
                             const at::Tensor& gates, const WeightSource& weight) const {
  const ParameterLayout::Layer& at = layer_of(layer);
  const int64_t rows = ids.size(0), top_k = ids.size(1), experts = config().num_experts;
  // Slots (row, choice) sorted by expert, so that an expert's rows are consecutive.
  const auto [sorted_ids, order] =
      at::sort(ids.reshape({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor places = at::arange(rows * top_k, order.options());
  const at::Tensor inverse = at::empty_like(order).index_copy_(0, order, places);
  const at::Tensor ends = at::searchsorted(sorted_ids, at::arange(experts, order.options()),
                                           /*out_int32=*/true, /*right=*/true);
  const auto first_experts = [&](const std::vector<int64_t>& all) {
    return std::span(all).first(static_cast<size_t>(experts));
  };
  const at::Tensor gate_up = device_.multiply_experts(SlotRows::apply(input, order, inverse, top_k),
                                                      ends, first_experts(at.gate_up), weight);
  const at::Tensor out = device_.multiply_experts(activate(layer, Site::kFfnMid, gate_up), ends,
                                                  first_experts(at.down), weight);
  const at::Tensor by_row = SlotRows::apply(out, inverse, order, int64_t{1});
  return (by_row.view({rows, top_k, -1}).to(at::kFloat) * gates.unsqueeze(2)).sum(1);
}

at::Tensor AtenModel::ffn(int64_t layer, const SequenceRows& part, const at::Tensor& x,
                          const WeightSource& weight) const {
  const ModelConfig& c = config();
  const ParameterLayout::Layer& at = layer_of(layer);
  const int64_t rows = part.rows, top_k = c.num_experts_per_tok;
  const at::Tensor h = norm(x, weight.of(at.post_norm)).to(at::kBFloat16);
  const at::Tensor input = quantize(layer, Site::kFfnIn, h, "feed-forward input");
  if (at.router < 0) return x + expert(layer, Site::kFfnMid, input, 0, weight);

  const at::Tensor logits = device_.linear(h, weight.of(at.router)).to(at::kFloat);
  const at::Tensor probabilities = at::softmax(logits.narrow(1, 0, c.num_experts), 1);
  const at::Tensor ids = part.replay_routing
                             ? device_.replayed(part, top_k)
                             : std::get<1>(at::topk(probabilities.detach(), top_k, 1));
  if (part.record_routing) {
    at::from_blob(part.record_routing, {rows, top_k}, at::kInt).copy_(ids);
  }
  at::Tensor gates = probabilities.gather(1, ids);
  if (c.norm_topk_prob) gates = gates / gates.sum(1, /*keepdim=*/true);
  at::Tensor y = x + routed(layer, input, ids, gates, weight);
  if (!c.has_shared_expert(layer)) return y;
  // Its input is quantised as the experts' is, or not at all.
  const bool quantised = device_.sites().quantised(layer, Site::kSharedMid);
  const at::Tensor shared =
      expert(layer, Site::kSharedMid, quantised ? input : h, at.gate_up.size() - 1, weight);
  return y + at::sigmoid(logits.narrow(1, c.num_experts, 1)) * shared;
}

at::Tensor AtenModel::log_softmax(const at::Tensor& x, float inv_temperature,
                                  const WeightSource& weight) const {
  const at::Tensor h = norm(x, weight.of(device_.layout().final_norm)).to(at::kBFloat16);
  const at::Tensor logits = device_.linear(h, weight.of(device_.layout().head)).to(at::kFloat);
  return at::log_softmax(logits * inv_temperature, 1);
}

}  // namespace quads
