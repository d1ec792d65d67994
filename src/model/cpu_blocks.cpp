#include "model/cpu_blocks.h"

#include <algorithm>

#include "base/error.h"

namespace quads {

void CpuBlocks::embed(const RowBatch& batch, float* x) {
  const Bf16* table = model_.parameters().of(model_.parameters().layout().embedding);
  const int64_t width = hidden(), vocab = model_.config().vocab_size;
  for (int64_t r = 0; r < batch.rows; ++r) {
    const int32_t token = batch.tokens[r];
    require(token >= 0 && token < vocab, "token {} is outside the vocabulary of {}", token, vocab);
    const Bf16* row = table + token * width;
    for (int64_t i = 0; i < width; ++i) x[r * width + i] = to_float(row[i]);
  }
}

kernels::AttentionRows CpuBlocks::attention_rows(int64_t layer, const RowBatch& batch) const {
  kernels::AttentionRows rows = batch.attention;
  rows.rows = batch.rows;
  rows.kv += layer * batch.kv_layer_stride;
  return rows;
}

kernels::MoeRouting CpuBlocks::routing(int64_t layer, const RowBatch& batch) const {
  const int64_t offset = layer * batch.rows * model_.config().num_experts_per_tok;
  const bool sparse = model_.ffn(layer).router != nullptr;
  return {.replay = sparse && batch.replay_routing ? batch.replay_routing + offset : nullptr,
          .record = sparse && batch.record_routing ? batch.record_routing + offset : nullptr};
}

void CpuBlocks::attention_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  kernels::AttentionStats stats;
  if (batch.residual_sums) {
    stats.qkv = batch.residual_sums->at(layer, Site::kAttentionIn, batch.counted);
    stats.out = batch.residual_sums->at(layer, Site::kAttentionOut, batch.counted);
  }
  kernels::attention_forward(context_, model_.attention(layer), attention_rows(layer, batch), stats,
                             x, y);
}

void CpuBlocks::ffn_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  kernels::MoeStats stats;
  if (batch.residual_sums) {
    stats.gate_up = batch.residual_sums->at(layer, Site::kFfnIn, batch.counted);
    stats.down = batch.residual_sums->at(layer, Site::kFfnMid, batch.counted);
    stats.shared_down = batch.residual_sums->at(layer, Site::kSharedMid, batch.counted);
  }
  kernels::moe_forward(context_, model_.ffn(layer), batch.rows, routing(layer, batch), stats, x, y);
}

void CpuBlocks::head_forward(const Targets& targets, const float* x, int64_t, float* logp,
                             float* entropy) {
  kernels::head_forward(context_, model_.head(), x, targets.rows, targets.tokens, targets.count,
                        targets.inv_temperature, logp, entropy);
}

void CpuBlocks::embed_backward(const RowBatch& batch, const float* dx, float* grads) {
  const ParameterLayout& layout = model_.parameters().layout();
  float* table = grads + layout.at(layout.embedding).offset;
  const int64_t width = hidden();
  for (int64_t r = 0; r < batch.rows; ++r) {
    context_.rows().add(dx + r * width, width, table + batch.tokens[r] * width);
  }
}

void CpuBlocks::attention_backward(int64_t layer, const RowBatch& batch, const float* x,
                                   const float* dy, float* grads, float* dx) {
  const ParameterLayout& layout = model_.parameters().layout();
  const ParameterLayout::Layer& at = layout.layers[static_cast<size_t>(layer)];
  const auto grad = [&](int64_t index) {
    return index < 0 ? nullptr : grads + layout.at(index).offset;
  };
  const kernels::AttentionGrads g{grad(at.input_norm), grad(at.qkv),    grad(at.qkv_bias),
                                  grad(at.q_norm),     grad(at.k_norm), grad(at.o)};
  kernels::attention_backward(context_, model_.attention(layer), model_.attention_transposed(layer),
                              attention_rows(layer, batch), batch.cu_seqlens, batch.sequences, x,
                              dy, g, dx);
}

void CpuBlocks::ffn_backward(int64_t layer, const RowBatch& batch, const float* x, const float* dy,
                             float* grads, float* dx) {
  const ParameterLayout& layout = model_.parameters().layout();
  const ParameterLayout::Layer& at = layout.layers[static_cast<size_t>(layer)];
  const auto grad = [&](int64_t index) { return grads + layout.at(index).offset; };
  std::vector<float*> gate_up, down;
  for (int64_t index : at.gate_up) gate_up.push_back(grad(index));
  for (int64_t index : at.down) down.push_back(grad(index));
  const kernels::MoeGrads g{grad(at.post_norm), at.router < 0 ? nullptr : grad(at.router),
                            gate_up.data(), down.data()};
  kernels::moe_backward(context_, model_.ffn(layer), model_.ffn_transposed(layer), batch.rows,
                        routing(layer, batch), x, dy, g, dx);
}

void CpuBlocks::head_backward(const Targets& targets, const float* x, int64_t rows,
                              const float* dlogp, float* grads, float* dx) {
  const ParameterLayout& layout = model_.parameters().layout();
  std::fill_n(dx, rows * hidden(), 0.0F);
  kernels::head_backward(context_, model_.head(), model_.head_transposed(), x, targets.rows,
                         targets.tokens, targets.count, targets.inv_temperature, dlogp,
                         grads + layout.at(layout.final_norm).offset,
                         grads + layout.at(layout.head).offset, dx);
}

}  // namespace quads
