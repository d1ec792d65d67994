// The backward of CudaBlocks.
#include <algorithm>

#include "cuda/cuda_blocks_parts.h"
#include "kernels/cuda/gradients/gradient_gemm.h"
#include "kernels/cuda/gradients/head_gradients.h"
#include "kernels/cuda/gradients/moe_gradients.h"
#include "kernels/cuda/gradients/row_gradients.h"
#include "kernels/cuda/quantize/dequantize_weights.h"

namespace quads::cuda {

namespace k = kernels::cuda;

namespace {

// Columns of an operand are multiples of this; parameters have the rows for it.
int64_t round_up_8(int64_t n) { return (n + 7) / 8 * 8; }

}  // namespace

CudaBlocks::Scratch::Scratch(const CudaModel& model, const HeadShape& shape, int64_t rows,
                             int64_t logits_rows) {
  const ModelConfig& c = model.config();
  const int64_t hidden = c.hidden_size, blocks = k::gradient_blocks(rows);
  int64_t slots = 0, all_slots = 0, by_width = 0, of_middle = 0, matrices = 0, router_rows = 0;
  const auto add_matrices = [&](const DeviceExperts& experts) {
    matrices = std::max(matrices, experts.matrices * experts.n * experts.k);
  };
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const DeviceLayer& layer = model.layer(l);
    slots = std::max(slots, rows * layer.top_k);
    all_slots = std::max(all_slots, rows * (layer.top_k + (layer.has_shared() ? 1 : 0)));
    by_width = std::max({by_width, rows * layer.top_k * layer.ffn.down.k,
                         layer.has_shared() ? rows * layer.shared.down.k : 0});
    if (layer.out.plain == nullptr) of_middle = rows * shape.q_width();
    if (layer.router != nullptr) router_rows = std::max(router_rows, layer.router_rows());
    for (const DeviceExperts* experts :
         {&layer.qkv.quantised, &layer.out.quantised, &layer.ffn.gate_up, &layer.shared.gate_up}) {
      add_matrices(*experts);
    }
  }
  dy = DeviceArray<Bf16>(rows * hidden);
  dqkv = DeviceArray<Bf16>(rows * shape.qkv_width());
  dlogits = DeviceArray<Bf16>(rows * round_up_8(router_rows));
  dz = DeviceArray<Bf16>(logits_rows * round_up_8(c.vocab_size));
  dout = DeviceArray<float>(rows * shape.q_width());
  stats = DeviceArray<float>(rows * shape.heads * 3);
  dq = DeviceArray<float>(rows * shape.q_width());
  dk = DeviceArray<float>(rows * shape.kv_width());
  dv = DeviceArray<float>(rows * shape.kv_width());
  dh = DeviceArray<float>(rows * hidden);
  partials = DeviceArray<float>(blocks * std::max(hidden, shape.qkv_width()));
  q_partials = DeviceArray<float>(blocks * shape.q_width());
  k_partials = DeviceArray<float>(blocks * shape.kv_width());
  inputs = DeviceArray<Bf16>(slots * hidden);
  middle = DeviceArray<Bf16>(std::max(by_width, of_middle));
  dy_sorted = DeviceArray<Bf16>(slots * hidden);
  weighted = DeviceArray<Bf16>(slots * hidden);
  dgate_up = DeviceArray<Bf16>(2 * by_width);
  dmiddle = DeviceArray<float>(by_width);
  dinput = DeviceArray<float>(all_slots * hidden);
  dweights = DeviceArray<float>(all_slots);
  weights = DeviceArray<Bf16>(matrices);
}

CudaBlocks::Scratch& CudaBlocks::scratch() {
  if (scratch_ == nullptr) {
    scratch_ = std::make_unique<Scratch>(model_, forward_->shape(), max_rows_, logits_rows());
  }
  return *scratch_;
}

float* CudaBlocks::gradient(int64_t parameter, float* grads) const {
  return parameter < 0 ? nullptr : grads + layout_.at(parameter).offset;
}

void CudaBlocks::add_vector_gradient(const float* partials, int64_t rows, int64_t parameter,
                                     float* grads) {
  if (parameter < 0) return;
  k::add_partials(context_, partials, k::gradient_blocks(rows), layout_.at(parameter).size(),
                  gradient(parameter, grads));
}

void CudaBlocks::head_backward(const Targets& targets, const float* x, int64_t rows,
                               const float* dlogp, float* grads, float* dx) {
  const ModelConfig& c = model_.config();
  check_cuda(cudaMemsetAsync(dx, 0, static_cast<size_t>(rows * c.hidden_size) * sizeof(float),
                             context_.stream),
             "clearing gradients");
  if (targets.count == 0) return;
  take(targets);
  head_->dlogp.resize(targets.count);
  std::copy_n(dlogp, targets.count, head_->dlogp.host());
  head_->dlogp.upload(context_.stream);
  const Scratch& s = scratch();
  const int64_t padded = round_up_8(c.vocab_size), step = logits_rows();
  for (int64_t begin = 0; begin < targets.count; begin += step) {
    const int64_t part = std::min(step, targets.count - begin);
    const float* logits = forward_->logits(context_, x, head_->rows.device() + begin, part);
    k::logp_backward(context_, {.z = logits,
                                .rows = part,
                                .vocab = c.vocab_size,
                                .inv_temperature = targets.inv_temperature,
                                .targets = head_->targets.device() + begin,
                                .dlogp = head_->dlogp.device() + begin,
                                .ldd = padded,
                                .dz = s.dz.data()});
    k::input_gradient(context_, {.experts = {.rows = part},
                                 .dy = s.dz.data(),
                                 .lddy = padded,
                                 .weight = model_.head(),
                                 .n = c.hidden_size,
                                 .k = padded,
                                 .dx = s.dh.data()});
    k::norm_backward(context_, {.x = x,
                                .places = head_->rows.device() + begin,
                                .rows = part,
                                .d = c.hidden_size,
                                .weight = model_.final_norm(),
                                .eps = static_cast<float>(c.rms_norm_eps),
                                .dh = s.dh.data(),
                                .dx = dx,
                                .partials = s.partials.data()});
    add_vector_gradient(s.partials.data(), part, layout_.final_norm, grads);
    k::weight_gradient(context_, {.experts = {.rows = part},
                                  .dy = s.dz.data(),
                                  .lddy = padded,
                                  .x = forward_->logits_input(),
                                  .m = padded,
                                  .n = c.hidden_size,
                                  .dw = gradient(layout_.head, grads)});
  }
}

void CudaBlocks::embed_backward(const RowBatch& batch, const float* dx, float* grads) {
  require_taken(batch);
  k::embed_backward(context_, {.dx = dx,
                               .d = hidden(),
                               .tokens_count = batch_->distinct.size(),
                               .tokens = batch_->distinct.device(),
                               .first_row = batch_->first_row.device(),
                               .rows = batch_->rows_by_token.device(),
                               .table = gradient(layout_.embedding, grads)});
}

void CudaBlocks::attention_backward(int64_t index, const RowBatch& batch, const float* x,
                                    const float* dy, float* grads, float* dx) {
  require_taken(batch);
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layer(index);
  const ParameterLayout::Layer& at = layout_.layers[static_cast<size_t>(index)];
  const HeadShape shape = forward_->shape();
  const Scratch& s = scratch();
  const int64_t rows = batch.rows;
  const auto eps = static_cast<float>(c.rms_norm_eps);
  const DeviceSlots every_row = forward_->every_row();
  // What the products multiplied.
  const Bf16* h = forward_->normalised();
  const Bf16* attended = forward_->attended();
  forward_->attention_inputs(context_, index, batch_->device, kv_.data(), x);
  if (layer.qkv.plain == nullptr) {
    image_values(layer.qkv.input, every_row, c.hidden_size, s.inputs.data());
    h = s.inputs.data();
  }
  forward_->attend(context_, batch_->device, kv_.data(), batch_->pages);
  if (layer.out.plain == nullptr) {
    forward_->quantise_attended(context_, index, batch_->device);
    image_values(layer.out.input, every_row, shape.q_width(), s.middle.data());
    attended = s.middle.data();
  }
  const auto weight = [&](const DeviceLinear& linear) {
    return linear.plain != nullptr ? linear.plain : dequantise(linear.quantised, linear.input);
  };

  k::round_values(context_, dy, rows * c.hidden_size, s.dy.data());
  k::input_gradient(context_, {.experts = {.rows = rows},
                               .dy = s.dy.data(),
                               .lddy = c.hidden_size,
                               .weight = weight(layer.out),
                               .n = shape.q_width(),
                               .k = c.hidden_size,
                               .dx = s.dout.data()});
  k::attention_backward(context_, {.shape = shape,
                                   .rows = rows,
                                   .tiles = batch_->tiles.device(),
                                   .tile_count = batch_->tiles.size(),
                                   .scale = forward_->attention_scale(),
                                   .q = forward_->queries(),
                                   .kv = kv_.data(),
                                   .dout = s.dout.data(),
                                   .stats = s.stats.data(),
                                   .dq = s.dq.data(),
                                   .dk = s.dk.data(),
                                   .dv = s.dv.data()});
  k::qkv_backward(context_,
                  {.shape = shape,
                   .rows = rows,
                   .positions = batch_->positions.device(),
                   .qkv = forward_->qkv(),
                   .q_norm = layer.q_norm,
                   .k_norm = layer.k_norm,
                   .whole_norm = c.qk_norm() == QkNorm::kProjection,
                   .eps = eps,
                   .cos = model_.cos(),
                   .sin = model_.sin(),
                   .dq = s.dq.data(),
                   .dk = s.dk.data(),
                   .dv = s.dv.data(),
                   .dqkv = s.dqkv.data(),
                   .q_partials = layer.q_norm == nullptr ? nullptr : s.q_partials.data(),
                   .k_partials = layer.k_norm == nullptr ? nullptr : s.k_partials.data(),
                   .bias_partials = layer.qkv_bias == nullptr ? nullptr : s.partials.data()});
  add_vector_gradient(s.q_partials.data(), rows, at.q_norm, grads);
  add_vector_gradient(s.k_partials.data(), rows, at.k_norm, grads);
  add_vector_gradient(s.partials.data(), rows, at.qkv_bias, grads);

  k::input_gradient(context_, {.experts = {.rows = rows},
                               .dy = s.dqkv.data(),
                               .lddy = shape.qkv_width(),
                               .weight = weight(layer.qkv),
                               .n = c.hidden_size,
                               .k = shape.qkv_width(),
                               .dx = s.dh.data()});
  k::norm_backward(context_, {.x = x,
                              .rows = rows,
                              .d = c.hidden_size,
                              .weight = layer.input_norm,
                              .eps = eps,
                              .dh = s.dh.data(),
                              .dy = dy,
                              .dx = dx,
                              .partials = s.partials.data()});
  add_vector_gradient(s.partials.data(), rows, at.input_norm, grads);
  k::weight_gradient(context_, {.experts = {.rows = rows},
                                .dy = s.dqkv.data(),
                                .lddy = shape.qkv_width(),
                                .x = h,
                                .m = shape.qkv_width(),
                                .n = c.hidden_size,
                                .dw = gradient(at.qkv, grads)});
  k::weight_gradient(context_, {.experts = {.rows = rows},
                                .dy = s.dy.data(),
                                .lddy = c.hidden_size,
                                .x = attended,
                                .m = c.hidden_size,
                                .n = shape.q_width(),
                                .dw = gradient(at.o, grads)});
}

const Bf16* CudaBlocks::dequantise(const DeviceExperts& experts, const DeviceSite& input) {
  const bool ordered = k::is_nvfp4(experts.format);
  k::dequantize_weights(context_, {.format = experts.format,
                                   .matrices = experts.matrices,
                                   .n = experts.n,
                                   .k = experts.k,
                                   .fragments = experts.fragments.data(),
                                   .global_scales = experts.global_scales.data(),
                                   .block_position = ordered ? input.block_position : nullptr,
                                   .paired = experts.paired,
                                   .values = scratch().weights.data()});
  return scratch().weights.data();
}

void CudaBlocks::image_values(const DeviceSite& site, const DeviceSlots& slots, int64_t width,
                              Bf16* values) {
  k::image_values(context_, {.q1 = forward_->q1(),
                             .q2 = forward_->q2(),
                             .row_scales = forward_->row_scales(site),
                             .image_rows = slots.sorted_image_rows,
                             .rows = batch_->rows * slots.choices,
                             .k = width,
                             .block_position = site.block_position,
                             .residual_blocks = site.residual_blocks,
                             .values = values});
}

void CudaBlocks::experts_backward(const DeviceFfn& ffn, const DeviceSlots& slots,
                                  std::span<const int64_t> gate_up, std::span<const int64_t> down,
                                  const float* dy, float* grads, float* dinput, float* dweights) {
  const Scratch& s = scratch();
  const int64_t hidden = this->hidden(), width = ffn.down.k;
  const int64_t rows = batch_->rows, count = rows * slots.choices;
  const k::ExpertRows experts{
      .experts = ffn.gate_up.matrices, .offsets = slots.expert_offsets, .rows = count};
  // Gradients of an expert's matrices lie as the next expert's do.
  const int64_t stride =
      experts.experts == 1 ? 0 : layout_.at(gate_up[1]).offset - layout_.at(gate_up[0]).offset;

  // The forward up to the experts' intermediate rows, and what its products stand for.
  forward_->expand(context_, ffn, slots, batch_->device, Middle::kGatesUps);
  image_values(ffn.gate_up_input, slots, hidden, s.inputs.data());
  forward_->quantise_middle(context_, ffn, slots, batch_->device, Middle::kGatesUps);
  image_values(ffn.down_input, slots, width, s.middle.data());

  k::expert_outputs_backward(context_, {.dy = dy,
                                        .sorted_rows = slots.sorted_rows,
                                        .weights = slots.weights,
                                        .rows = rows,
                                        .d = hidden,
                                        .top_k = slots.choices,
                                        .dy_sorted = s.dy_sorted.data(),
                                        .weighted = s.weighted.data()});
  k::input_gradient(context_, {.experts = experts,
                               .dy = s.dy_sorted.data(),
                               .lddy = hidden,
                               .weight = dequantise(ffn.down, ffn.down_input),
                               .stride = hidden * width,
                               .n = width,
                               .k = hidden,
                               .dx = s.dmiddle.data()});
  k::weight_gradient(context_, {.experts = experts,
                                .dy = s.weighted.data(),
                                .lddy = hidden,
                                .x = s.middle.data(),
                                .m = hidden,
                                .n = width,
                                .dw = gradient(down[0], grads),
                                .stride = stride});
  k::silu_backward(context_, {.gate_up = forward_->gate_up(),
                              .dh = s.dmiddle.data(),
                              .h = s.middle.data(),
                              .sorted_rows = slots.sorted_rows,
                              .weights = slots.weights,
                              .slots = count,
                              .width = width,
                              .dgate_up = s.dgate_up.data(),
                              .dweights = dweights});
  k::input_gradient(context_, {.experts = experts,
                               .dy = s.dgate_up.data(),
                               .lddy = 2 * width,
                               .weight = dequantise(ffn.gate_up, ffn.gate_up_input),
                               .stride = 2 * width * hidden,
                               .n = hidden,
                               .k = 2 * width,
                               .dx = dinput});
  k::weight_gradient(context_, {.experts = experts,
                                .dy = s.dgate_up.data(),
                                .lddy = 2 * width,
                                .x = s.inputs.data(),
                                .m = 2 * width,
                                .n = hidden,
                                .dw = gradient(gate_up[0], grads),
                                .stride = stride});
}

void CudaBlocks::ffn_backward(int64_t index, const RowBatch& batch, const float* x, const float* dy,
                              float* grads, float* dx) {
  require_taken(batch);
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layer(index);
  const ParameterLayout::Layer& at = layout_.layers[static_cast<size_t>(index)];
  const Scratch& s = scratch();
  const int64_t rows = batch.rows, slots = rows * layer.top_k;
  float* shared_dinput = s.dinput.data() + slots * c.hidden_size;
  forward_->route(context_, index, batch_->device, x);
  experts_backward(layer.ffn, forward_->routed(index), at.gate_up, at.down, dy, grads,
                   s.dinput.data(), s.dweights.data());
  if (layer.has_shared()) {
    experts_backward(layer.shared, forward_->shared(), std::span(at.gate_up).last(1),
                     std::span(at.down).last(1), dy, grads, shared_dinput,
                     s.dweights.data() + slots);
  }

  // Through the router, then a row's choices together, and back through the norm.
  if (layer.router != nullptr) route_backward(index, grads, s.dh.data());
  const auto add_inputs = [&](const float* base, const float* parts, const DeviceSlots& from) {
    k::sum_choices(context_, {.base = base,
                              .parts = parts,
                              .sorted_rows = from.sorted_rows,
                              .rows = rows,
                              .d = c.hidden_size,
                              .top_k = from.choices,
                              .sums = s.dh.data()});
  };
  add_inputs(layer.router == nullptr ? nullptr : s.dh.data(), s.dinput.data(),
             forward_->routed(index));
  if (layer.has_shared()) add_inputs(s.dh.data(), shared_dinput, forward_->shared());
  k::norm_backward(context_, {.x = x,
                              .rows = rows,
                              .d = c.hidden_size,
                              .weight = layer.post_norm,
                              .eps = static_cast<float>(c.rms_norm_eps),
                              .dh = s.dh.data(),
                              .dy = dy,
                              .dx = dx,
                              .partials = s.partials.data()});
  add_vector_gradient(s.partials.data(), rows, at.post_norm, grads);
}

void CudaBlocks::route_backward(int64_t index, float* grads, float* dh) {
  const ModelConfig& c = model_.config();
  const DeviceLayer& layer = model_.layer(index);
  const ParameterLayout::Layer& at = layout_.layers[static_cast<size_t>(index)];
  const Scratch& s = scratch();
  const int64_t padded = round_up_8(layer.router_rows());
  const bool shared = layer.has_shared();
  k::route_backward(
      context_,
      {.logits = forward_->router_logits(),
       .ldl = layer.router_rows(),
       .rows = batch_->rows,
       .experts = layer.ffn.gate_up.matrices,
       .top_k = static_cast<int>(layer.top_k),
       .normalise = c.norm_topk_prob,
       .ids = forward_->ids(),
       .dweights = s.dweights.data(),
       .shared_weights = shared ? forward_->shared().weights : nullptr,
       .shared_dweights = shared ? s.dweights.data() + batch_->rows * layer.top_k : nullptr,
       .ldd = padded,
       .dlogits = s.dlogits.data()});
  k::input_gradient(context_, {.experts = {.rows = batch_->rows},
                               .dy = s.dlogits.data(),
                               .lddy = padded,
                               .weight = layer.router,
                               .n = c.hidden_size,
                               .k = padded,
                               .dx = dh});
  k::weight_gradient(context_, {.experts = {.rows = batch_->rows},
                                .dy = s.dlogits.data(),
                                .lddy = padded,
                                .x = forward_->normalised(),
                                .m = padded,
                                .n = c.hidden_size,
                                .dw = gradient(at.router, grads)});
}

}  // namespace quads::cuda
