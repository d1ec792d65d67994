#include "cuda/device_blocks.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/qkv_rows.h"
#include "kernels/cuda/dense/dense_gemm.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/quantize/quantize_rows.h"
#include "kernels/cuda/rows/gather_rows.h"
#include "kernels/cuda/rows/token_rows.h"

namespace quads::cuda {

namespace k = kernels::cuda;

DeviceBlocks::DeviceBlocks(const CudaModel& model, int64_t max_rows, int64_t max_logits_rows,
                           int64_t max_context)
    : model_(model), max_rows_(max_rows), max_logits_rows_(max_logits_rows) {
  const ModelConfig& c = model.config();
  shape_ = {static_cast<int>(c.num_attention_heads), static_cast<int>(c.num_key_value_heads),
            static_cast<int>(c.head_dim)};
  int64_t image = 0, padded = 0, gate_up = 0, parts = max_rows * c.hidden_size, router_rows = 0;
  bool fp16 = false;  // images of q1 + q2
  const auto make_room = [&](const DeviceExperts& experts, int64_t slots) {
    image = std::max(image, k::image_elements(slots, experts.matrices, k::stages_of(experts.k)));
    padded = std::max(padded, k::padded_rows_bound(slots, experts.matrices));
    fp16 = fp16 || experts.format == WeightFormat::kNvfp4Fp16;
  };
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const DeviceLayer& layer = model.layer(l);
    for (const DeviceLinear* linear : {&layer.qkv, &layer.out}) {
      if (linear->plain != nullptr) continue;
      make_room(linear->quantised, max_rows);
      has_every_row_ = true;
    }
    for (const DeviceFfn* ffn : {&layer.ffn, &layer.shared}) {
      if (ffn->gate_up.matrices == 0) continue;
      const bool every_row = ffn == &layer.shared || layer.router == nullptr;
      const int64_t slots = max_rows * (every_row ? 1 : layer.top_k);
      has_every_row_ = has_every_row_ || every_row;
      make_room(ffn->gate_up, slots);
      make_room(ffn->down, slots);
      gate_up = std::max(gate_up, slots * ffn->gate_up.n);
      parts = std::max(parts, slots * ffn->down.n);
    }
    if (layer.router == nullptr) continue;
    max_slots_ = std::max(max_slots_, max_rows * layer.top_k);
    max_experts_ = std::max<int64_t>(max_experts_, layer.ffn.gate_up.matrices);
    router_rows = std::max(router_rows, layer.router_rows());
  }
  h_ = scratch<Bf16>(max_rows * c.hidden_size);
  qkv_ = scratch<float>(max_rows * shape_.qkv_width());
  q_ = scratch<Bf16>(max_rows * shape_.q_width());
  attended_ = scratch<Bf16>(max_rows * shape_.q_width());
  attention_scratch_ = scratch<uint8_t>(
      std::max(k::attention_scratch_bytes(shape_, max_rows, max_context, AttentionTile::kRow),
               k::attention_scratch_bytes(shape_, max_rows, max_context, AttentionTile::kRuns)));
  router_logits_ = scratch<float>(max_rows * router_rows);
  ids_ = scratch<int32_t>(max_slots_);
  weights_ = scratch<float>(max_slots_);
  shared_weights_ = scratch<float>(max_rows);
  expert_offsets_ = scratch<int32_t>(max_experts_ + 1);
  sorted_rows_ = scratch<int32_t>(max_slots_);
  sorted_tokens_ = scratch<int32_t>(max_slots_);
  image_rows_ = scratch<k::ImageRow>(max_slots_);
  sorted_image_rows_ = scratch<k::ImageRow>(max_slots_);
  zeros_ = scratch<int32_t>(max_rows);
  every_offsets_ = scratch<int32_t>(2);
  every_rows_ = scratch<int32_t>(max_rows);
  every_image_rows_ = scratch<k::ImageRow>(max_rows);
  ones_ = scratch<float>(max_rows);
  q1_ = scratch<Bf16>(image);
  q2_ = scratch<Bf16>(model.sites().compensated() && !fp16 ? image : 0);
  row_scales_ = scratch<float>(fp16 ? padded : 0);
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
  zeros_.clear(stream);
  const std::vector<float> ones(static_cast<size_t>(max_rows), 1.0F);
  ones_.upload(ones, stream);
  check_cuda(cudaStreamSynchronize(stream), "preparing scratch memory");
}

void DeviceBlocks::embed(const CudaContext& context, const DeviceRows& rows, float* x) {
  k::embed_rows(context, {.table = model_.embedding(),
                          .vocab = model_.config().vocab_size,
                          .d = model_.config().hidden_size,
                          .tokens = rows.tokens,
                          .rows = rows.places.rows,
                          .x = x});
  if (!has_every_row_) return;
  k::sort_slots(context, {.ids = zeros_.data(),
                          .slots = rows.places.rows,
                          .experts = 1,
                          .top_k = 1,
                          .expert_offsets = every_offsets_.data(),
                          .sorted_rows = every_rows_.data(),
                          .image_rows = every_image_rows_.data()});
}

DeviceSlots DeviceBlocks::routed(int64_t index) const {
  const DeviceLayer& layer = model_.layer(index);
  if (layer.router == nullptr) return every_row();
  return {.choices = static_cast<int>(layer.top_k),
          .expert_offsets = expert_offsets_.data(),
          .sorted_rows = sorted_rows_.data(),
          .image_rows = image_rows_.data(),
          .sorted_image_rows = sorted_image_rows_.data(),
          .sorted_tokens = sorted_tokens_.data(),
          .weights = weights_.data(),
          .older = k::OlderInput::kRows};
}

DeviceSlots DeviceBlocks::every_row() const {
  return {.choices = 1,
          .expert_offsets = every_offsets_.data(),
          .sorted_rows = every_rows_.data(),
          .image_rows = every_image_rows_.data(),
          .sorted_image_rows = every_image_rows_.data(),
          .sorted_tokens = nullptr,
          .weights = ones_.data(),
          .older = k::OlderInput::kPlaces};
}

DeviceSlots DeviceBlocks::shared() const {
  DeviceSlots slots = every_row();
  slots.weights = shared_weights_.data();
  return slots;
}

void DeviceBlocks::norm(const CudaContext& context, const Bf16* weight, const DeviceRows& rows,
                        const float* x) {
  k::norm_rows(context, {.x = x,
                         .rows = rows.places.rows,
                         .d = model_.config().hidden_size,
                         .weight = weight,
                         .eps = static_cast<float>(model_.config().rms_norm_eps),
                         .h = h_.data()});
}

void DeviceBlocks::attention_inputs(const CudaContext& context, int64_t index,
                                    const DeviceRows& rows, Bf16* kv, const float* x) {
  norm(context, model_.layer(index).input_norm, rows, x);
  project_qkv(context, index, rows, kv);
}

void DeviceBlocks::project_qkv(const CudaContext& context, int64_t index, const DeviceRows& rows,
                               Bf16* kv) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layer(index);
  const int64_t n = rows.places.rows;
  if (layer.qkv.plain != nullptr) {
    k::dense_gemm(context, {.x = h_.data(),
                            .weight = layer.qkv.plain,
                            .bias = layer.qkv_bias,
                            .y = qkv_.data(),
                            .rows = n,
                            .n = shape_.qkv_width(),
                            .k = c.hidden_size});
  } else {
    quantise_rows(context, layer.qkv.input, h_.data(), c.hidden_size, every_row(), rows);
    multiply(context, layer.qkv.quantised, layer.qkv.input, every_row(), rows, qkv_.data());
    if (layer.qkv_bias != nullptr) {
      k::add_bias(context,
                  {.y = qkv_.data(), .rows = n, .d = shape_.qkv_width(), .bias = layer.qkv_bias});
    }
  }
  k::qkv_rows(context, {.shape = shape_,
                        .places = rows.places,
                        .qkv = qkv_.data(),
                        .q_norm = layer.q_norm,
                        .k_norm = layer.k_norm,
                        .whole_norm = c.qk_norm() == QkNorm::kProjection,
                        .eps = static_cast<float>(c.rms_norm_eps),
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

void DeviceBlocks::quantise_attended(const CudaContext& context, int64_t index,
                                     const DeviceRows& rows) {
  quantise_rows(context, model_.layer(index).out.input, attended_.data(), shape_.q_width(),
                every_row(), rows);
}

void DeviceBlocks::attention(const CudaContext& context, int64_t index, const DeviceRows& rows,
                             Bf16* kv, int64_t pages, const float* x, float* y) {
  norm(context, model_.layer(index).input_norm, rows, x);
  attention_of_normalised(context, index, rows, kv, pages, x, y);
}

void DeviceBlocks::attention_of_normalised(const CudaContext& context, int64_t index,
                                           const DeviceRows& rows, Bf16* kv, int64_t pages,
                                           const float* x, float* y) {
  const DeviceLinear& out = model_.layer(index).out;
  const int64_t hidden = model_.config().hidden_size;
  project_qkv(context, index, rows, kv);
  attend(context, rows, kv, pages);
  if (out.plain != nullptr) {
    k::dense_gemm(context, {.x = attended_.data(),
                            .weight = out.plain,
                            .residual = x,
                            .y = y,
                            .rows = rows.places.rows,
                            .n = hidden,
                            .k = shape_.q_width()});
    return;
  }
  quantise_attended(context, index, rows);
  multiply(context, out.quantised, out.input, every_row(), rows, parts_.data());
  add_parts(context, every_row(), rows, x, y, nullptr);
}

void DeviceBlocks::multiply(const CudaContext& context, const DeviceExperts& experts,
                            const DeviceSite& site, const DeviceSlots& slots,
                            const DeviceRows& rows, float* y, k::GemmOutput output) {
  const bool fp16 = site.format == WeightFormat::kNvfp4Fp16;
  k::grouped_gemm(context,
                  {.experts = experts.matrices,
                   .n = experts.n,
                   .k = experts.k,
                   .format = experts.format,
                   .weights = experts.fragments.data(),
                   .global_scales = experts.global_scales.data(),
                   .expert_offsets = slots.expert_offsets,
                   .q1 = q1_.data(),
                   .q2 = q2_.data(),
                   .row_scales = row_scales(site),
                   .residual_stages = fp16 ? 0 : k::stages_of(int64_t{16} * site.residual_blocks),
                   .y = y,
                   .output = output,
                   .rows_bound = rows.places.rows * slots.choices});
}

void DeviceBlocks::add_parts(const CudaContext& context, const DeviceSlots& slots,
                             const DeviceRows& rows, const float* x, float* y,
                             const Bf16* next_norm) {
  k::combine_rows(context, {.x = x,
                            .parts = parts_.data(),
                            .sorted_rows = slots.sorted_rows,
                            .weights = slots.weights,
                            .rows = rows.places.rows,
                            .d = model_.config().hidden_size,
                            .top_k = slots.choices,
                            .y = y,
                            .norm_weight = next_norm,
                            .eps = static_cast<float>(model_.config().rms_norm_eps),
                            .h = next_norm == nullptr ? nullptr : h_.data()});
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
  args.row_scales = row_scales_.data();
  args.first_bad_row = first_bad_row_.data();
  return args;
}

void DeviceBlocks::quantise_rows(const CudaContext& context, const DeviceSite& site, const Bf16* x,
                                 int64_t width, const DeviceSlots& slots, const DeviceRows& rows) {
  k::QuantizeRows args = quantised(site, width, rows);
  args.x = x;
  args.ldx = width;
  args.rows = rows.places.rows;
  args.image_rows = slots.image_rows;
  args.copies = slots.choices;
  args.older = slots.older;
  k::quantize_rows(context, args);
}

void DeviceBlocks::route(const CudaContext& context, int64_t index, const DeviceRows& rows,
                         const float* x) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layer(index);
  const int64_t n = rows.places.rows;
  const int64_t slots = n * layer.top_k;
  const auto top_k = static_cast<int>(layer.top_k);
  norm(context, layer.post_norm, rows, x);
  if (layer.router == nullptr) return;
  k::dense_gemm(context, {.x = h_.data(),
                          .weight = layer.router,
                          .y = router_logits_.data(),
                          .rows = n,
                          .n = layer.router_rows(),
                          .k = c.hidden_size});
  k::route_rows(
      context,
      {.logits = router_logits_.data(),
       .ldl = layer.router_rows(),
       .rows = n,
       .experts = layer.ffn.gate_up.matrices,
       .top_k = top_k,
       .normalise = c.norm_topk_prob,
       .forced = rows.replay_routing == nullptr ? nullptr : rows.replay_routing + index * slots,
       .ids = ids_.data(),
       .weights = weights_.data(),
       .shared_weights = layer.has_shared() ? shared_weights_.data() : nullptr});
  if (rows.record_routing != nullptr) {
    check_cuda(cudaMemcpyAsync(rows.record_routing + index * slots, ids_.data(),
                               static_cast<size_t>(slots) * sizeof(int32_t),
                               cudaMemcpyDeviceToDevice, context.stream),
               "recording routing");
  }
  k::sort_slots(context, {.ids = ids_.data(),
                          .slots = slots,
                          .experts = layer.ffn.gate_up.matrices,
                          .top_k = top_k,
                          .expert_offsets = expert_offsets_.data(),
                          .sorted_rows = sorted_rows_.data(),
                          .image_rows = image_rows_.data(),
                          .sorted_image_rows = sorted_image_rows_.data(),
                          .sorted_tokens = sorted_tokens_.data()});
}

void DeviceBlocks::expand(const CudaContext& context, const DeviceFfn& ffn,
                          const DeviceSlots& slots, const DeviceRows& rows, Middle middle) {
  quantise_rows(context, ffn.gate_up_input, h_.data(), ffn.gate_up.k, slots, rows);
  const k::GemmOutput output =
      middle == Middle::kActivated ? k::GemmOutput::kSilu : k::GemmOutput::kGatesUps;
  multiply(context, ffn.gate_up, ffn.gate_up_input, slots, rows, gate_up_.data(), output);
}

void DeviceBlocks::quantise_middle(const CudaContext& context, const DeviceFfn& ffn,
                                   const DeviceSlots& slots, const DeviceRows& rows, Middle form) {
  k::QuantizeRows middle = quantised(ffn.down_input, ffn.down.k, rows);
  if (form == Middle::kActivated) {
    middle.x = reinterpret_cast<const Bf16*>(gate_up_.data());
    middle.ldx = ffn.down.k;
  } else {
    middle.gate_up = gate_up_.data();
    middle.ldx = ffn.gate_up.n;
  }
  middle.rows = rows.places.rows * slots.choices;
  middle.image_rows = slots.sorted_image_rows;
  middle.older = k::OlderInput::kPlaces;
  middle.tokens = middle.counted == nullptr ? nullptr : slots.sorted_tokens;
  k::quantize_rows(context, middle);
}

void DeviceBlocks::add_ffn(const CudaContext& context, const DeviceFfn& ffn,
                           const DeviceSlots& slots, const DeviceRows& rows, const float* x,
                           float* y, const Bf16* next_norm) {
  expand(context, ffn, slots, rows, Middle::kActivated);
  quantise_middle(context, ffn, slots, rows, Middle::kActivated);
  multiply(context, ffn.down, ffn.down_input, slots, rows, parts_.data());
  add_parts(context, slots, rows, x, y, next_norm);
}

void DeviceBlocks::ffn(const CudaContext& context, int64_t index, const DeviceRows& rows,
                       const float* x, float* y) {
  ffn_and_norm(context, index, rows, x, y, nullptr);
}

void DeviceBlocks::ffn_and_norm(const CudaContext& context, int64_t index, const DeviceRows& rows,
                                const float* x, float* y, const Bf16* next_norm) {
  const DeviceLayer& layer = model_.layer(index);
  route(context, index, rows, x);
  add_ffn(context, layer.ffn, routed(index), rows, x, y, layer.has_shared() ? nullptr : next_norm);
  if (layer.has_shared()) add_ffn(context, layer.shared, shared(), rows, y, y, next_norm);
}

void DeviceBlocks::forward(const CudaContext& context, const DeviceRows& rows, Bf16* kv,
                           int64_t pages, float* x) {
  const int64_t layers = model_.config().num_hidden_layers;
  embed(context, rows, x);
  norm(context, model_.layer(0).input_norm, rows, x);
  for (int64_t l = 0; l < layers; ++l) {
    Bf16* of_layer = kv + l * pages * shape_.page_elements();
    attention_of_normalised(context, l, rows, of_layer, pages, x, x);
    ffn_and_norm(context, l, rows, x, x, l + 1 < layers ? model_.layer(l + 1).input_norm : nullptr);
  }
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
