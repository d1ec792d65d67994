#include "cuda/cuda_model.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/memory_plan.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/quantize_weights.h"
#include "kernels/cuda/route.h"
#include "model/rope.h"

namespace quads::cuda {

using kernels::cuda::max_weight_bits;

WeightFormat device_format(Format format) {
  switch (format) {
    case Format::kBf16:
      return WeightFormat::kBf16;
    case Format::kFp8:
      return WeightFormat::kFp8;
    case Format::kNvfp4:
      return WeightFormat::kNvfp4;
  }
  return WeightFormat::kBf16;
}

namespace {

size_t site_index(int64_t layer, Site site) {
  return static_cast<size_t>(layer * kSites + static_cast<int64_t>(site));
}

}  // namespace

CudaModel::CudaModel(cudaStream_t stream, const ParameterSource& source, const Precision& precision,
                     const QuantizeScope& scope, int64_t max_positions)
    : context_(kernels::cuda::make_context(stream)),
      source_(source),
      layout_(source.layout()),
      sites_{source.config(), precision, scope},
      max_positions_(max_positions),
      plain_offset_(layout_.parameters.size(), -1) {
  require_supported();
  MemoryPlan plan;
  plan.add("weights", model_bytes(layout_, sites_));
  plan.require_fits(free_bytes());
  const ModelConfig& c = config();
  std::vector<bool> of_expert(layout_.parameters.size());
  for (const ParameterLayout::Layer& layer : layout_.layers) {
    for (const int64_t index : layer.gate_up) of_expert[static_cast<size_t>(index)] = true;
    for (const int64_t index : layer.down) of_expert[static_cast<size_t>(index)] = true;
  }
  int64_t elements = 0;
  for (int64_t i = 0; i < std::ssize(layout_.parameters); ++i) {
    if (of_expert[static_cast<size_t>(i)]) continue;
    plain_parameters_.push_back(i);
    plain_offset_[static_cast<size_t>(i)] = elements;
    elements += layout_.at(i).padded_size();
  }
  plain_ = DeviceArray<Bf16>(elements);

  int64_t residuals = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    for (int s = 0; s < kSites; ++s) {
      const bool has = sites_.has_residuals(l, static_cast<Site>(s));
      residual_offset_.push_back(has ? residuals : -1);
      if (has) residuals += sites_.width(l, static_cast<Site>(s));
    }
  }
  residual_sums_ = DeviceArray<int64_t>(residuals);
  residual_sums_.clear(stream);
  site_buffers_.resize(residual_offset_.size());

  int64_t staged = 0, matrices = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    add_layer(l);
    staged = std::max(staged, ranges_.back().stride * ranges_.back().count);
    matrices += 2 * ranges_.back().count;
  }
  staging_ = DeviceArray<Bf16>(staged);
  amax_bits_ = DeviceArray<uint32_t>(std::ssize(plain_parameters_) + matrices);

  kernels::RopeTable rope = make_rope_table(c.rope, c.head_dim);
  const int64_t angles = max_positions * c.head_dim / 2;
  const float *cos = rope.cos(max_positions), *sin = rope.sin(max_positions);
  cos_ = DeviceArray<float>(angles);
  sin_ = DeviceArray<float>(angles);
  cos_.upload({cos, cos + angles}, stream);
  sin_.upload({sin, sin + angles}, stream);
  check_cuda(cudaStreamSynchronize(stream), "making a model");
}

void CudaModel::require_supported() const {
  const ModelConfig& c = config();
  require(c.shared_expert_intermediate_size == 0,
          "{} has shared experts, which --device cuda "
          "cannot compute: use --device cpu",
          architecture_name(c.architecture));
  require(sites_.scope.what == QuantizeScope::What::kExperts,
          "--quantize linears: on a GPU only experts are quantised; use --device cpu");
  require(c.hidden_size % 64 == 0 && c.hidden_size <= kernels::cuda::kMaxQuantizedK,
          "hidden_size {}: on a GPU it must be a multiple of 64, at most {}", c.hidden_size,
          kernels::cuda::kMaxQuantizedK);
  require(c.head_dim % 16 == 0 && c.head_dim >= 32 && c.head_dim <= 256,
          "head_dim {}: on a GPU it must be a multiple of 16, 32..256", c.head_dim);
  require(c.num_attention_heads / c.num_key_value_heads <= 16,
          "{} heads share a key: on a GPU 16 at most",
          c.num_attention_heads / c.num_key_value_heads);
  require(c.num_experts <= kernels::cuda::kMaxExperts &&
              c.num_experts_per_tok <= kernels::cuda::kMaxTopK,
          "{} experts, {} a token: on a GPU {} and {} at most", c.num_experts,
          c.num_experts_per_tok, kernels::cuda::kMaxExperts, kernels::cuda::kMaxTopK);
}

void CudaModel::add_layer(int64_t l) {
  const ModelConfig& c = config();
  const ParameterLayout::Layer& at = layout_.layers[static_cast<size_t>(l)];
  const bool sparse = c.is_sparse(l);
  const int64_t width = sites_.width(l, Site::kFfnMid);
  require(width % 32 == 0 && width <= kernels::cuda::kMaxQuantizedK,
          "intermediate size {}: on a GPU it must be a multiple of 32, at most {}", width,
          kernels::cuda::kMaxQuantizedK);
  const bool quantised = sites_.quantised(l, Site::kFfnIn);
  DeviceLayer layer{};
  layer.input_norm = plain(at.input_norm);
  layer.post_norm = plain(at.post_norm);
  layer.q_norm = plain(at.q_norm);
  layer.k_norm = plain(at.k_norm);
  layer.qkv = plain(at.qkv);
  layer.qkv_bias = plain(at.qkv_bias);
  layer.out = plain(at.o);
  layer.router = plain(at.router);
  layer.top_k = sparse ? c.num_experts_per_tok : 1;
  const int64_t experts = std::ssize(at.gate_up);
  layer.gate_up = make_experts(experts, 2 * width, c.hidden_size, quantised);
  layer.down = make_experts(experts, c.hidden_size, width, quantised);
  layer.gate_up_input = make_site(l, Site::kFfnIn);
  layer.down_input = make_site(l, Site::kFfnMid);
  layers_.push_back(std::move(layer));

  ExpertRange range{.first = layout_.at(at.gate_up[0]).offset,
                    .stride = 0,
                    .down = layout_.at(at.down[0]).offset - layout_.at(at.gate_up[0]).offset,
                    .count = experts};
  range.stride = range.down + layout_.at(at.down[0]).padded_size();
  for (int64_t e = 0; e < experts; ++e) {
    const auto i = static_cast<size_t>(e);
    require(layout_.at(at.gate_up[i]).offset == range.first + e * range.stride &&
                layout_.at(at.down[i]).offset == range.first + e * range.stride + range.down,
            "layer {}: its experts do not lie one after the other", l);
  }
  ranges_.push_back(range);
}

const Bf16* CudaModel::plain(int64_t parameter) const {
  if (parameter < 0) return nullptr;
  return plain_.data() + plain_offset_[static_cast<size_t>(parameter)];
}

DeviceExperts CudaModel::make_experts(int64_t matrices, int64_t n, int64_t k, bool quantised) {
  DeviceExperts experts;
  experts.format = quantised ? device_format(sites_.precision.weights) : WeightFormat::kBf16;
  experts.matrices = static_cast<int>(matrices);
  experts.n = n;
  experts.k = k;
  experts.fragments =
      DeviceArray<uint8_t>(matrices * kernels::cuda::fragment_bytes(n, k, experts.format));
  experts.global_scales = DeviceArray<float>(matrices);
  if (experts.format != WeightFormat::kBf16) {
    quantised_bytes_ += experts.fragments.size();
    quantised_bytes_as_bf16_ += matrices * n * k * static_cast<int64_t>(sizeof(Bf16));
  }
  return experts;
}

DeviceSite CudaModel::make_site(int64_t layer, Site site) {
  DeviceSite device;
  if (!sites_.quantised(layer, site)) return device;
  device.format = device_format(sites_.precision.activations);
  const int64_t offset = residual_offset_[site_index(layer, site)];
  if (offset >= 0) device.residual_sums = residual_sums_.data() + offset;
  if (sites_.compensated()) {
    const int64_t k = sites_.width(layer, site);
    SiteBuffers& buffers = site_buffers_[site_index(layer, site)];
    buffers.block_position = DeviceArray<int32_t>(k / 16);
    buffers.channel_mask = DeviceArray<uint8_t>(k);
    device.block_position = buffers.block_position.data();
    device.channel_mask = buffers.channel_mask.data();
  }
  return device;
}

void CudaModel::update_site(int64_t layer, Site site, const RacMasks& masks, DeviceSite& device) {
  if (!sites_.quantised(layer, site)) return;
  const std::vector<uint8_t>& mask = masks.at(layer, site);
  const int64_t k = sites_.width(layer, site);
  require(std::ssize(mask) == k,
          "the compensation mask of layer {}, site {} has {} channels, not {}", layer,
          static_cast<int>(site), mask.size(), k);
  const BlockOrder order = compensated_first(mask);
  const SiteBuffers& buffers = site_buffers_[site_index(layer, site)];
  buffers.block_position.upload(order.position, context_.stream);
  buffers.channel_mask.upload(mask, context_.stream);
  device.residual_blocks = static_cast<int>(order.compensated);
  check_cuda(cudaStreamSynchronize(context_.stream), "copying masks to the device");
}

void CudaModel::update_masks(const RacMasks& masks) {
  if (!sites_.compensated()) return;
  require(masks.masks.size() == site_buffers_.size(),
          "compensation masks for {} sites given, the model has {}", masks.masks.size(),
          site_buffers_.size());
  for (int64_t l = 0; l < std::ssize(layers_); ++l) {
    DeviceLayer& layer = layers_[static_cast<size_t>(l)];
    update_site(l, Site::kFfnIn, masks, layer.gate_up_input);
    update_site(l, Site::kFfnMid, masks, layer.down_input);
  }
}

void CudaModel::quantise(const DeviceExperts& experts, const Bf16* first, int64_t stride,
                         const int32_t* block_position, uint32_t* amax_bits) {
  kernels::cuda::quantize_weights(
      context_,
      {.format = experts.format,
       .matrices = experts.matrices,
       .w = first,
       .stride = stride,
       .n = experts.n,
       .k = experts.k,
       .block_position = experts.format == WeightFormat::kNvfp4 ? block_position : nullptr,
       .fragments = experts.fragments.data(),
       .global_scales = experts.global_scales.data(),
       .amax_bits = amax_bits});
}

void CudaModel::refresh(const RacMasks& masks) {
  update_masks(masks);
  uint32_t* amax = amax_bits_.data();
  for (const int64_t index : plain_parameters_) {
    const Parameter& p = layout_.at(index);
    Bf16* to = plain_.data() + plain_offset_[static_cast<size_t>(index)];
    source_.copy(p.offset, p.padded_size(), to, context_.stream);
    kernels::cuda::weight_amax(context_, to, 1, 0, p.padded_size(), amax++);
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    const DeviceLayer& layer = layers_[l];
    const ExpertRange& range = ranges_[l];
    source_.copy(range.first, range.count * range.stride, staging_.data(), context_.stream);
    quantise(layer.gate_up, staging_.data(), range.stride, layer.gate_up_input.block_position,
             amax);
    quantise(layer.down, staging_.data() + range.down, range.stride,
             layer.down_input.block_position, amax + range.count);
    amax += 2 * range.count;
  }
  std::vector<uint32_t> bits(static_cast<size_t>(amax_bits_.size()));
  check_cuda(cudaMemcpyAsync(bits.data(), amax_bits_.data(), amax_bits_.bytes(),
                             cudaMemcpyDeviceToHost, context_.stream),
             "copying from the device");
  check_cuda(cudaStreamSynchronize(context_.stream), "quantising the weights");
  require_finite(bits);
}

void CudaModel::require_finite(const std::vector<uint32_t>& amax_bits) const {
  // Looking for a bad value reads the whole parameter: only where there is one.
  const auto check = [&](int64_t parameter, uint32_t bits, WeightFormat format) {
    constexpr uint32_t kFinite = max_weight_bits(WeightFormat::kBf16);
    if (bits > kFinite) fail("{} is not finite", source_.find_bad(parameter, kFinite));
    if (bits > max_weight_bits(format)) {
      fail("{} is too large to be quantised: amax {}",
           source_.find_bad(parameter, max_weight_bits(format)),
           to_float(Bf16{static_cast<uint16_t>(bits)}));
    }
  };
  size_t next = 0;
  for (const int64_t index : plain_parameters_) {
    check(index, amax_bits[next++], WeightFormat::kBf16);
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    const ParameterLayout::Layer& at = layout_.layers[l];
    for (const int64_t index : at.gate_up) {
      check(index, amax_bits[next++], layers_[l].gate_up.format);
    }
    for (const int64_t index : at.down) check(index, amax_bits[next++], layers_[l].down.format);
  }
}

std::vector<std::vector<int64_t>> CudaModel::take_residual_sums() {
  std::vector<int64_t> all(static_cast<size_t>(residual_sums_.size()));
  if (!all.empty()) {
    check_cuda(cudaMemcpyAsync(all.data(), residual_sums_.data(), residual_sums_.bytes(),
                               cudaMemcpyDeviceToHost, context_.stream),
               "copying from the device");
    residual_sums_.clear(context_.stream);
    check_cuda(cudaStreamSynchronize(context_.stream), "reading residual sums");
  }
  std::vector<std::vector<int64_t>> result(residual_offset_.size());
  for (size_t i = 0; i < result.size(); ++i) {
    if (residual_offset_[i] < 0) continue;
    const auto site = static_cast<Site>(i % kSites);
    const auto begin = all.begin() + residual_offset_[i];
    result[i].assign(begin, begin + sites_.width(static_cast<int64_t>(i) / kSites, site));
  }
  return result;
}

int64_t CudaModel::weight_bytes() const {
  auto bytes = static_cast<int64_t>(plain_.bytes());
  for (const DeviceLayer& layer : layers_) {
    for (const DeviceExperts* experts : {&layer.gate_up, &layer.down}) {
      bytes += static_cast<int64_t>(experts->fragments.bytes() + experts->global_scales.bytes());
    }
  }
  return bytes;
}

}  // namespace quads::cuda
