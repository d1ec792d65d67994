#include "cuda/device_blocks.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/dense_gemm.h"
#include "kernels/cuda/gather_rows.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/qkv_rows.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/token_rows.h"

namespace quads::cuda {

namespace k = kernels::cuda;

DeviceBlocks::DeviceBlocks(const CudaModel& model, int64_t max_rows, int64_t max_logits_rows,
                           int64_t max_context)
    : model_(model), max_rows_(max_rows), max_logits_rows_(max_logits_rows) {
  const ModelConfig& c = model.config();
  shape_ = {static_cast<int>(c.num_attention_heads), static_cast<int>(c.num_key_value_heads),
            static_cast<int>(c.head_dim)};
  int64_t image = 0, gate_up = 0, parts = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const DeviceLayer& layer = model.layer(l);
    const int64_t slots = max_rows * layer.top_k;
    const int64_t experts = layer.gate_up.matrices;
    max_slots_ = std::max(max_slots_, slots);
    max_experts_ = std::max(max_experts_, experts);
    const int stages = k::stages_of(std::max(layer.gate_up.k, layer.down.k));
    image = std::max(image, k::image_elements(slots, experts, stages));
    gate_up = std::max(gate_up, slots * layer.gate_up.n);
    parts = std::max(parts, slots * layer.down.n);
  }
  h_ = scratch<Bf16>(max_rows * c.hidden_size);
  qkv_ = scratch<float>(max_rows * shape_.qkv_width());
  q_ = scratch<Bf16>(max_rows * shape_.q_width());
  attended_ = scratch<Bf16>(max_rows * shape_.q_width());
  attention_scratch_ = scratch<uint8_t>(
      std::max(k::attention_scratch_bytes(shape_, max_rows, max_context, AttentionTile::kRow),
               k::attention_scratch_bytes(shape_, max_rows, max_context, AttentionTile::kRuns)));
  router_logits_ = scratch<float>(max_rows * max_experts_);
  ids_ = scratch<int32_t>(max_slots_);
  weights_ = scratch<float>(max_slots_);
  dense_ids_ = scratch<int32_t>(max_rows);
  dense_weights_ = scratch<float>(max_rows);
  expert_offsets_ = scratch<int32_t>(max_experts_ + 1);
  sorted_rows_ = scratch<int32_t>(max_slots_);
  sorted_tokens_ = scratch<int32_t>(max_slots_);
  image_rows_ = scratch<k::ImageRow>(max_slots_);
  sorted_image_rows_ = scratch<k::ImageRow>(max_slots_);
  q1_ = scratch<Bf16>(image);
  q2_ = scratch<Bf16>(model.sites().compensated() ? image : 0);
  gate_up_ = scratch<float>(gate_up);
  parts_ = scratch<float>(parts);
  logits_x_ = scratch<float>(max_logits_rows * c.hidden_size);
  logits_h_ = scratch<Bf16>(max_logits_rows * c.hidden_size);
  logits_ = scratch<float>(max_logits_rows * c.vocab_size);
  first_bad_row_ = scratch<int32_t>(1);

  // What padding rows hold is never looked at, but is computed with: numbers.
  cudaStream_t stream = nullptr;
  for (const auto clear : {&qkv_, &weights_}) clear->clear(stream);
  for (const auto clear : {&h_, &q_, &attended_}) clear->clear(stream);
  dense_ids_.clear(stream);
  const std::vector<float> ones(static_cast<size_t>(max_rows), 1.0F);
  dense_weights_.upload(ones, stream);
  check_cuda(cudaStreamSynchronize(stream), "preparing scratch memory");
}

void DeviceBlocks::embed(const CudaContext& context, const DeviceRows& rows, float* x) {
  k::embed_rows(context, {.table = model_.embedding(),
                          .vocab = model_.config().vocab_size,
                          .d = model_.config().hidden_size,
                          .tokens = rows.tokens,
                          .rows = rows.places.rows,
                          .x = x});
}

void DeviceBlocks::attention_inputs(const CudaContext& context, int64_t index,
                                    const DeviceRows& rows, Bf16* kv, const float* x) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layer(index);
  const int64_t n = rows.places.rows;
  const auto eps = static_cast<float>(c.rms_norm_eps);
  k::norm_rows(context, {.x = x,
                         .rows = n,
                         .d = c.hidden_size,
                         .weight = layer.input_norm,
                         .eps = eps,
                         .h = h_.data()});
  k::dense_gemm(context, {.x = h_.data(),
                          .weight = layer.qkv,
                          .bias = layer.qkv_bias,
                          .y = qkv_.data(),
                          .rows = n,
                          .n = shape_.qkv_width(),
                          .k = c.hidden_size});
  k::qkv_rows(context, {.shape = shape_,
                        .places = rows.places,
                        .qkv = qkv_.data(),
                        .q_norm = layer.q_norm,
                        .k_norm = layer.k_norm,
                        .whole_norm = c.qk_norm() == QkNorm::kProjection,
                        .eps = eps,
                        .cos = model_.cos(),
                        .sin = model_.sin(),
                        .q = q_.data(),
                        .kv = kv});
}

float DeviceBlocks::attention_scale() const {
  return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
}

void DeviceBlocks::attend(const CudaContext& context, const DeviceRows& rows, const Bf16* kv,
                          int64_t pages) {
  k::attention_rows(context,
                    {.shape = shape_,
                     .places = rows.places,
                     .scale = attention_scale(),
                     .max_context = rows.max_context,
                     .q = q_.data(),
                     .kv = kv,
                     .pages = pages,
                     .scratch = attention_scratch_.data(),
                     .out = attended_.data()},
                    rows.tile);
}

void DeviceBlocks::attention(const CudaContext& context, int64_t index, const DeviceRows& rows,
                             Bf16* kv, int64_t pages, const float* x, float* y) {
  attention_inputs(context, index, rows, kv, x);
  attend(context, rows, kv, pages);
  k::dense_gemm(context, {.x = attended_.data(),
                          .weight = model_.layer(index).out,
                          .residual = x,
                          .y = y,
                          .rows = rows.places.rows,
                          .n = model_.config().hidden_size,
                          .k = shape_.q_width()});
}

void DeviceBlocks::experts(const CudaContext& context, const DeviceExperts& experts,
                           const DeviceSite& site, int64_t slots, float* y) {
  k::grouped_gemm(context, {.experts = experts.matrices,
                            .n = experts.n,
                            .k = experts.k,
                            .format = experts.format,
                            .weights = experts.fragments.data(),
                            .global_scales = experts.global_scales.data(),
                            .expert_offsets = expert_offsets_.data(),
                            .q1 = q1_.data(),
                            .q2 = q2_.data(),
                            .residual_stages = k::stages_of(int64_t{16} * site.residual_blocks),
                            .y = y,
                            .rows_bound = slots});
}

k::QuantizeRows DeviceBlocks::quantised(const DeviceSite& site, int64_t width,
                                        const DeviceRows& rows) const {
  k::QuantizeRows args{.format = site.format, .k = width};
  args.block_position = site.block_position;
  args.residual_blocks = site.residual_blocks;
  if (site.residual_blocks > 0) args.channel_mask = site.channel_mask;
  args.scale_floor = model_.sites().precision.rac.scale_floor;
  if (rows.counted != nullptr) {
    args.residual_sums = site.residual_sums;
    args.counted = site.residual_sums == nullptr ? nullptr : rows.counted;
  }
  args.q1 = q1_.data();
  args.q2 = q2_.data();
  args.first_bad_row = first_bad_row_.data();
  return args;
}

void DeviceBlocks::expand(const CudaContext& context, int64_t index, const DeviceRows& rows,
                          const float* x) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layer(index);
  const int64_t n = rows.places.rows;
  const int64_t slots = n * layer.top_k;
  const auto top_k = static_cast<int>(layer.top_k);
  const bool sparse = layer.router != nullptr;
  k::norm_rows(context, {.x = x,
                         .rows = n,
                         .d = c.hidden_size,
                         .weight = layer.post_norm,
                         .eps = static_cast<float>(c.rms_norm_eps),
                         .h = h_.data()});
  if (sparse) {
    k::dense_gemm(context, {.x = h_.data(),
                            .weight = layer.router,
                            .y = router_logits_.data(),
                            .rows = n,
                            .n = c.num_experts,
                            .k = c.hidden_size});
    k::route_rows(
        context,
        {.logits = router_logits_.data(),
         .ldl = c.num_experts,
         .rows = n,
         .experts = layer.gate_up.matrices,
         .top_k = top_k,
         .normalise = c.norm_topk_prob,
         .forced = rows.replay_routing == nullptr ? nullptr : rows.replay_routing + index * slots,
         .ids = ids_.data(),
         .weights = weights_.data()});
    if (rows.record_routing != nullptr) {
      check_cuda(cudaMemcpyAsync(rows.record_routing + index * slots, ids_.data(),
                                 static_cast<size_t>(slots) * sizeof(int32_t),
                                 cudaMemcpyDeviceToDevice, context.stream),
                 "recording routing");
    }
  }
  k::sort_slots(context, {.ids = sparse ? ids_.data() : dense_ids_.data(),
                          .slots = slots,
                          .experts = layer.gate_up.matrices,
                          .top_k = top_k,
                          .expert_offsets = expert_offsets_.data(),
                          .sorted_rows = sorted_rows_.data(),
                          .image_rows = image_rows_.data(),
                          .sorted_image_rows = sorted_image_rows_.data(),
                          .sorted_tokens = sorted_tokens_.data()});
  k::QuantizeRows in = quantised(layer.gate_up_input, layer.gate_up.k, rows);
  in.x = h_.data();
  in.ldx = c.hidden_size;
  in.rows = n;
  in.image_rows = image_rows_.data();
  in.copies = top_k;
  k::quantize_rows(context, in);
  experts(context, layer.gate_up, layer.gate_up_input, slots, gate_up_.data());
}

void DeviceBlocks::quantise_middle(const CudaContext& context, int64_t index,
                                   const DeviceRows& rows) {
  const DeviceLayer& layer = model_.layer(index);
  k::QuantizeRows middle = quantised(layer.down_input, layer.down.k, rows);
  middle.gate_up = gate_up_.data();
  middle.ldx = layer.gate_up.n;
  middle.rows = rows.places.rows * layer.top_k;
  middle.image_rows = sorted_image_rows_.data();
  middle.tokens = middle.counted == nullptr ? nullptr : sorted_tokens_.data();
  k::quantize_rows(context, middle);
}

void DeviceBlocks::ffn(const CudaContext& context, int64_t index, const DeviceRows& rows,
                       const float* x, float* y) {
  const DeviceLayer& layer = model_.layer(index);
  expand(context, index, rows, x);
  quantise_middle(context, index, rows);
  experts(context, layer.down, layer.down_input, rows.places.rows * layer.top_k, parts_.data());
  k::combine_rows(context, {.x = x,
                            .parts = parts_.data(),
                            .sorted_rows = sorted_rows_.data(),
                            .weights = weights(index),
                            .rows = rows.places.rows,
                            .d = model_.config().hidden_size,
                            .top_k = static_cast<int>(layer.top_k),
                            .y = y});
}

const float* DeviceBlocks::logits(const CudaContext& context, const float* x, const int32_t* rows,
                                  int64_t count) {
  const ModelConfig& c = model_.config();
  k::gather_rows(
      context, {.x = x, .indices = rows, .rows = count, .d = c.hidden_size, .y = logits_x_.data()});
  k::norm_rows(context, {.x = logits_x_.data(),
                         .rows = count,
                         .d = c.hidden_size,
                         .weight = model_.final_norm(),
                         .eps = static_cast<float>(c.rms_norm_eps),
                         .h = logits_h_.data()});
  k::dense_gemm(context, {.x = logits_h_.data(),
                          .weight = model_.head(),
                          .y = logits_.data(),
                          .rows = count,
                          .n = c.vocab_size,
                          .k = c.hidden_size});
  return logits_.data();
}

}  // namespace quads::cuda
