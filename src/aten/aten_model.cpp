#include "aten/aten_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include <algorithm>

#include "ops/fake_quantize.h"
#include "ops/matmul.h"
#include "ops/straight_through.h"

namespace quads {
namespace {

// BF16 rows as the format multiplies them, with straight-through gradients.
at::Tensor quantize(const at::Tensor& x, kernels::ActivationFormat format, std::string_view where) {
  if (format == kernels::ActivationFormat::kBf16) return x;
  at::Tensor q;
  {
    const at::NoGradGuard no_grad;
    q = ops::fake_quantize_activation(x.detach().contiguous(), format, where);
  }
  return ops::StraightThrough::apply(x, q);
}

// silu(gate) * up of [rows, 2 * width], gate first; BF16.
at::Tensor silu_mul(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, width).to(at::kFloat);
  const at::Tensor up = gate_up.narrow(1, width, width).to(at::kFloat);
  return (at::silu(gate) * up).to(at::kBFloat16);
}

// Rotate-half RoPE of x [rows, heads, head_dim] FP32 with cos and sin [rows, 1, head_dim / 2].
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(2) / 2;
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, 2);
}

// Where each row of packed sequences goes in [sequences, longest].
struct Padding {
  int64_t sequences, longest = 0;
  at::Tensor slots = {};  // [rows]
};

Padding pad_sequences(const SequenceRows& rows) {
  Padding padding{.sequences = std::ssize(rows.cu_seqlens) - 1};
  const auto begin = [&](int64_t s) { return rows.cu_seqlens[static_cast<size_t>(s)]; };
  for (int64_t s = 0; s < padding.sequences; ++s) {
    padding.longest = std::max(padding.longest, begin(s + 1) - begin(s));
  }
  padding.slots = at::empty({rows.rows}, at::kLong);
  auto* slot = padding.slots.mutable_data_ptr<int64_t>();
  for (int64_t s = 0; s < padding.sequences; ++s) {
    for (int64_t r = begin(s); r < begin(s + 1); ++r) {
      slot[r - rows.begin] = s * padding.longest + r - begin(s);
    }
  }
  return padding;
}

}  // namespace

at::Tensor wrap(const float* x, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<float*>(x), sizes, at::kFloat);
}
at::Tensor wrap(const int64_t* x, int64_t n) {
  return at::from_blob(const_cast<int64_t*>(x), {n}, at::kLong);
}
at::Tensor wrap(const int32_t* x, int64_t n) {
  return at::from_blob(const_cast<int32_t*>(x), {n}, at::kInt).to(at::kLong);
}

WeightSource AtenModel::plain_weights() const {
  return [this](int64_t parameter) { return weights_.at(parameter); };
}

at::Tensor AtenModel::norm(const at::Tensor& x, const at::Tensor& weight) const {
  return at::rms_norm(x, {x.size(-1)}, weight, model_.config().rms_norm_eps);
}

at::Tensor AtenModel::attention(int64_t layer, const SequenceRows& part, const at::Tensor& x,
                                const WeightSource& weight) const {
  const ParameterLayout::Layer& at = layer_of(layer);
  const kernels::AttentionBlock& block = model_.attention(layer);
  const int64_t rows = part.rows, head_dim = block.shape.head_dim;
  const int64_t heads = block.shape.heads, kv_heads = block.shape.kv_heads;

  const at::Tensor h = quantize(norm(x, weight(at.input_norm)).to(at::kBFloat16),
                                block.qkv.input.format, "attention input");
  at::Tensor product = ops::linear_bf16(h, weight(at.qkv));
  if (at.qkv_bias >= 0) {
    product = (product.to(at::kFloat) + weight(at.qkv_bias)).to(at::kBFloat16);
  }
  const at::Tensor qkv = product.view({rows, heads + 2 * kv_heads, head_dim});
  const at::Tensor positions = wrap(part.positions, rows);
  const int64_t last = *std::max_element(part.positions, part.positions + rows);
  const auto table = [&](const float* values) {
    return wrap(values, {last + 1, head_dim / 2}).index_select(0, positions).unsqueeze(1);
  };
  const at::Tensor cos = table(part.cos), sin = table(part.sin);
  const auto norm_and_rotate = [&](int64_t first, int64_t count, int64_t norm_heads,
                                   int64_t norm_weight) {
    at::Tensor x = qkv.narrow(1, first, count).to(at::kFloat);
    if (norm_weight >= 0) {
      x = norm(x.reshape({rows, count / norm_heads, norm_heads * head_dim}), weight(norm_weight))
              .view({rows, count, head_dim});
    }
    return rotate(x, cos, sin);
  };
  const at::Tensor q = norm_and_rotate(0, heads, block.q_norm_heads(), at.q_norm);
  const at::Tensor k = norm_and_rotate(heads, kv_heads, block.k_norm_heads(), at.k_norm);
  const at::Tensor v = qkv.narrow(1, heads + kv_heads, kv_heads);
  // Of BF16 values, but in FP32: BF16's attention on CPUs takes most of a step in its backward.
  const at::Tensor all = at::cat({q.to(at::kBFloat16), k.to(at::kBFloat16), v}, 1).to(at::kFloat);

  // Padding at the end needs no mask: attention is causal, so no row looks at it.
  const Padding padding = pad_sequences(part);
  const at::Tensor padded =
      all.new_zeros({padding.sequences * padding.longest, heads + 2 * kv_heads, head_dim})
          .index_copy(0, padding.slots, all)
          .view({padding.sequences, padding.longest, heads + 2 * kv_heads, head_dim})
          .transpose(1, 2);
  const at::Tensor attended = at::scaled_dot_product_attention(
      padded.narrow(1, 0, heads), padded.narrow(1, heads, kv_heads),
      padded.narrow(1, heads + kv_heads, kv_heads), {}, 0.0, /*is_causal=*/true, block.shape.scale,
      /*enable_gqa=*/heads != kv_heads);
  const at::Tensor out = attended.transpose(1, 2)
                             .reshape({padding.sequences * padding.longest, heads * head_dim})
                             .index_select(0, padding.slots)
                             .to(at::kBFloat16);
  const at::Tensor o = quantize(out, block.out.input.format, "attention output");
  return x + ops::linear_bf16(o, weight(at.o)).to(at::kFloat);
}

at::Tensor AtenModel::ffn(int64_t layer, const SequenceRows& part, const at::Tensor& x,
                          const WeightSource& weight) const {
  const ParameterLayout::Layer& at = layer_of(layer);
  const kernels::MoeBlock& block = model_.ffn(layer);
  const int64_t rows = part.rows, top_k = block.top_k;
  const at::Tensor h = norm(x, weight(at.post_norm)).to(at::kBFloat16);
  const at::Tensor input = quantize(h, block.gate_up_input.format, "feed-forward input");
  const auto middle = [](const at::Tensor& gate_up, const kernels::QuantizeSpec& spec) {
    return quantize(silu_mul(gate_up), spec.format, "intermediate activation");
  };
  if (at.router < 0) {
    const at::Tensor gate_up = ops::linear_bf16(input, weight(at.gate_up[0]));
    return x +
           ops::linear_bf16(middle(gate_up, block.down_input), weight(at.down[0])).to(at::kFloat);
  }

  const at::Tensor logits = ops::linear_bf16(h, weight(at.router)).to(at::kFloat);
  const at::Tensor probabilities = at::softmax(logits.narrow(1, 0, block.experts), 1);
  const at::Tensor ids = part.replay_routing
                             ? wrap(part.replay_routing, rows * top_k).view({rows, top_k})
                             : std::get<1>(at::topk(probabilities.detach(), top_k, 1));
  if (part.record_routing) {
    at::from_blob(part.record_routing, {rows, top_k}, at::kInt).copy_(ids);
  }
  at::Tensor gates = probabilities.gather(1, ids);
  if (block.normalise_weights) gates = gates / gates.sum(1, /*keepdim=*/true);

  // Slots (row, choice) sorted by expert, so that an expert's rows are consecutive.
  const at::Tensor flat = ids.reshape({-1});
  const at::Tensor order = at::argsort(flat, /*stable=*/true, 0, false);
  const at::Tensor inverse =
      at::empty_like(order).index_copy_(0, order, at::arange(rows * top_k, at::kLong));
  const at::Tensor counts = at::bincount(flat, {}, block.experts);
  const auto* count = counts.const_data_ptr<int64_t>();
  const auto per_expert = [&](const at::Tensor& in, const std::vector<int64_t>& parameters) {
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (int64_t e = 0; e < block.experts; ++e) {
      if (count[e] == 0) continue;
      parts.push_back(ops::linear_bf16(in.narrow(0, begin, count[e]),
                                       weight(parameters[static_cast<size_t>(e)])));
      begin += count[e];
    }
    return at::cat(parts, 0);
  };
  const at::Tensor sorted = input.index_select(0, order.floor_divide(top_k));
  const at::Tensor out =
      per_expert(middle(per_expert(sorted, at.gate_up), block.down_input), at.down);
  const at::Tensor by_row = out.index_select(0, inverse).view({rows, top_k, hidden()});
  at::Tensor y = x + (by_row.to(at::kFloat) * gates.unsqueeze(2)).sum(1);
  if (!block.has_shared()) return y;
  const at::Tensor shared_gate_up =
      ops::linear_bf16(quantize(h, block.shared_gate_up_input.format, "feed-forward input"),
                       weight(at.gate_up.back()));
  const at::Tensor shared =
      ops::linear_bf16(middle(shared_gate_up, block.shared_down_input), weight(at.down.back()));
  return y + at::sigmoid(logits.narrow(1, block.experts, 1)) * shared.to(at::kFloat);
}

at::Tensor AtenModel::log_softmax(const at::Tensor& x, float inv_temperature,
                                  const WeightSource& weight) const {
  const at::Tensor h = norm(x, weight(layout().final_norm)).to(at::kBFloat16);
  const at::Tensor logits = ops::linear_bf16(h, weight(layout().head)).to(at::kFloat);
  return at::log_softmax(logits * inv_temperature, 1);
}

}  // namespace quads
