#include "cuda/cuda_model.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/memory_plan.h"
#include "kernels/block_order.h"
#include "kernels/cuda/attention/kv_pages.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/quantize/quantize_rows.h"
#include "kernels/cuda/quantize/quantize_weights.h"

namespace quads::cuda {

using kernels::cuda::is_nvfp4;
using kernels::cuda::max_weight_bits;

WeightFormat device_format(Format format, const Rac& rac) {
  switch (format) {
    case Format::kBf16:
      return WeightFormat::kBf16;
    case Format::kFp8:
      return WeightFormat::kFp8;
    case Format::kNvfp4:
      return rac.ratio > 0 && rac.scale_floor ? WeightFormat::kNvfp4Fp16 : WeightFormat::kNvfp4;
  }
  return WeightFormat::kBf16;
}

namespace {

size_t site_index(int64_t layer, Site site) {
  return static_cast<size_t>(layer * kSites + static_cast<int64_t>(site));
}

WeightFormat format_at(const QuantisedSites& sites, int64_t layer, Site site) {
  return sites.quantised(layer, site) ? device_format(sites.precision.weights, sites.precision.rac)
                                      : WeightFormat::kBf16;
}

}  // namespace

std::vector<PackedParameter> packed_parameters(const ParameterLayout& layout,
                                               const QuantisedSites& sites, int64_t layer) {
  const ParameterLayout::Layer& at = layout.layers[static_cast<size_t>(layer)];
  std::vector<PackedParameter> all;
  const auto add_linear = [&](Site site, int64_t index) {
    if (sites.quantised(layer, site)) all.push_back({index, format_at(sites, layer, site)});
  };
  add_linear(Site::kAttentionIn, at.qkv);
  add_linear(Site::kAttentionOut, at.o);
  const bool has_shared = sites.config.has_shared_expert(layer);
  for (size_t e = 0; e < at.gate_up.size(); ++e) {
    const bool shared = has_shared && e + 1 == at.gate_up.size();
    const WeightFormat format = format_at(sites, layer, shared ? Site::kSharedMid : Site::kFfnMid);
    all.push_back({at.gate_up[e], format});
    all.push_back({at.down[e], format});
  }
  return all;
}

ParameterRange range_of(const ParameterLayout& layout,
                        const std::vector<PackedParameter>& parameters) {
  const Parameter &first = layout.at(parameters.front().index),
                  &last = layout.at(parameters.back().index);
  return {first.offset, last.offset + last.padded_size() - first.offset};
}

void require_quantisable(const ParameterSource& source, int64_t parameter, uint32_t amax_bits,
                         WeightFormat format) {
  // Looking for a bad value reads the whole parameter: only where there is one.
  constexpr uint32_t kFinite = max_weight_bits(WeightFormat::kBf16);
  if (amax_bits > kFinite) fail("{} is not finite", source.find_bad(parameter, kFinite));
  if (amax_bits > max_weight_bits(format)) {
    fail("{} is too large to be quantised: amax {}",
         source.find_bad(parameter, max_weight_bits(format)),
         to_float(Bf16{static_cast<uint16_t>(amax_bits)}));
  }
}

CudaModel::CudaModel(cudaStream_t stream, const ParameterSource& source, const Precision& precision,
                     const QuantizeScope& scope, int64_t max_positions, const StoredWeights* stored)
    : context_(kernels::cuda::make_context(stream)),
      source_(source),
      layout_(source.layout()),
      sites_{source.config(), precision, scope},
      rope_(source.config(), max_positions, stream),
      stored_(stored),
      plain_offset_(layout_.parameters.size(), -1) {
  require_supported();
  MemoryPlan plan;
  const bool resident = source_.resident() != nullptr;
  plan.add("weights", model_bytes(layout_, sites_, resident));
  plan.require_fits(free_bytes());
  const ModelConfig& c = config();
  std::vector<bool> packed(layout_.parameters.size());
  int64_t staged = 0, matrices = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::vector<PackedParameter> of_layer = packed_parameters(layout_, sites_, l);
    for (const PackedParameter& p : of_layer) packed[static_cast<size_t>(p.index)] = true;
    matrices += std::ssize(of_layer);
    packings_.push_back({.range = range_of(layout_, of_layer), .packings = {}});
    staged = std::max(staged, packings_.back().range.elements);
  }
  int64_t elements = 0;
  for (int64_t i = 0; i < std::ssize(layout_.parameters); ++i) {
    if (packed[static_cast<size_t>(i)]) continue;
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

  layers_.resize(static_cast<size_t>(c.num_hidden_layers));
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) add_layer(l);
  if (stored_ != nullptr) check_stored();
  staging_ = DeviceArray<Bf16>(resident ? 0 : staged);
  amax_bits_ = DeviceArray<uint32_t>(std::ssize(plain_parameters_) + matrices);
  amax_bits_.clear(stream);  // stays 0 for stored matrices
  scratch_ = DeviceArray<uint32_t>(kernels::cuda::kMaxExperts);
  check_cuda(cudaStreamSynchronize(stream), "making a model");
}

void CudaModel::require_supported() const {
  const ModelConfig& c = config();
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
  DeviceLayer& layer = layers_[static_cast<size_t>(l)];
  layer.input_norm = plain(at.input_norm);
  layer.post_norm = plain(at.post_norm);
  layer.q_norm = plain(at.q_norm);
  layer.k_norm = plain(at.k_norm);
  add_linear(l, Site::kAttentionIn, at.qkv, layer.qkv);
  add_linear(l, Site::kAttentionOut, at.o, layer.out);
  layer.qkv_bias = plain(at.qkv_bias);
  layer.router = plain(at.router);
  layer.top_k = c.is_sparse(l) ? c.num_experts_per_tok : 1;
  add_ffn(l, false, layer.ffn);
  if (c.has_shared_expert(l)) add_ffn(l, true, layer.shared);
}

void CudaModel::add_linear(int64_t l, Site site, int64_t parameter, DeviceLinear& linear) {
  if (!sites_.quantised(l, site)) {
    linear.plain = plain(parameter);
    return;
  }
  linear.input = make_site(l, site);
  add_packing(l, format_at(sites_, l, site), {parameter}, linear.input, linear.quantised);
}

void CudaModel::add_ffn(int64_t l, bool shared, DeviceFfn& ffn) {
  const ParameterLayout::Layer& at = layout_.layers[static_cast<size_t>(l)];
  const int64_t routed = config().is_sparse(l) ? config().num_experts : 1;
  const auto of_part = [&](const std::vector<int64_t>& all) {
    return std::vector<int64_t>(all.begin() + (shared ? routed : 0),
                                shared ? all.end() : all.begin() + routed);
  };
  const Site middle = shared ? Site::kSharedMid : Site::kFfnMid;
  if (!shared) {
    ffn.gate_up_input = make_site(l, Site::kFfnIn);
  } else if (sites_.quantised(l, middle)) {
    // The experts' input, whose residuals have been counted with them.
    ffn.gate_up_input = layers_[static_cast<size_t>(l)].ffn.gate_up_input;
    ffn.gate_up_input.residual_sums = nullptr;
  }
  ffn.down_input = make_site(l, middle);
  const WeightFormat format = format_at(sites_, l, middle);
  ffn.gate_up.paired = true;
  add_packing(l, format, of_part(at.gate_up), ffn.gate_up_input, ffn.gate_up);
  add_packing(l, format, of_part(at.down), ffn.down_input, ffn.down);
}

void CudaModel::add_packing(int64_t l, WeightFormat format, std::vector<int64_t> parameters,
                            const DeviceSite& input, DeviceExperts& to) {
  const Parameter& first = layout_.at(parameters.front());
  require(
      first.rows % 64 == 0 && first.cols % 16 == 0 && first.cols <= kernels::cuda::kMaxQuantizedK,
      "{} is [{}, {}]: on a GPU its rows must be a multiple of 64, its columns of 16, at most "
      "{}",
      first.name, first.rows, first.cols, kernels::cuda::kMaxQuantizedK);
  const int64_t matrices = std::ssize(parameters);
  to.format = format;
  to.matrices = static_cast<int>(matrices);
  to.n = first.rows;
  to.k = first.cols;
  to.fragments = DeviceArray<uint8_t>(matrices * kernels::cuda::fragment_bytes(to.n, to.k, format));
  to.global_scales = DeviceArray<float>(matrices);
  to.global_scales.clear(context_.stream);  // none is known yet
  if (format != WeightFormat::kBf16) {
    quantised_bytes_ += to.fragments.size();
    quantised_bytes_as_bf16_ += matrices * to.n * to.k * static_cast<int64_t>(sizeof(Bf16));
  }
  LayerPacking& layer = packings_[static_cast<size_t>(l)];
  const int64_t stride =
      matrices > 1 ? layout_.at(parameters[1]).offset - first.offset : first.padded_size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    require(layout_.at(parameters[i]).offset == first.offset + static_cast<int64_t>(i) * stride,
            "layer {}: its experts do not lie one after the other", l);
  }
  layer.packings.push_back({.to = &to,
                            .input = &input,
                            .parameters = std::move(parameters),
                            .first = first.offset - layer.range.offset,
                            .stride = stride});
}

const Bf16* CudaModel::plain(int64_t parameter) const {
  if (parameter < 0) return nullptr;
  return plain_.data() + plain_offset_[static_cast<size_t>(parameter)];
}

DeviceSite CudaModel::make_site(int64_t layer, Site site) {
  DeviceSite device;
  if (!sites_.quantised(layer, site)) return device;
  device.format = device_format(sites_.precision.activations, sites_.precision.rac);
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
    update_site(l, Site::kAttentionIn, masks, layer.qkv.input);
    update_site(l, Site::kAttentionOut, masks, layer.out.input);
    update_site(l, Site::kFfnIn, masks, layer.ffn.gate_up_input);
    update_site(l, Site::kFfnMid, masks, layer.ffn.down_input);
    if (!sites_.quantised(l, Site::kSharedMid)) continue;
    layer.shared.gate_up_input.residual_blocks = layer.ffn.gate_up_input.residual_blocks;
    update_site(l, Site::kSharedMid, masks, layer.shared.down_input);
  }
}

void CudaModel::quantise(const Packing& packing, const Bf16* range, uint32_t* amax_bits) {
  const DeviceExperts& to = *packing.to;
  const bool ordered = is_nvfp4(to.format);
  kernels::cuda::quantize_weights(
      context_, {.format = to.format,
                 .matrices = to.matrices,
                 .w = range + packing.first,
                 .stride = packing.stride,
                 .n = to.n,
                 .k = to.k,
                 .block_position = ordered ? packing.input->block_position : nullptr,
                 .paired = to.paired,
                 .fragments = to.fragments.data(),
                 .global_scales = to.global_scales.data(),
                 .amax_bits = amax_bits,
                 .scratch = scratch_.data()});
}

void CudaModel::check_stored() const {
  std::vector<bool> quantised(layout_.parameters.size());
  for (const LayerPacking& layer : packings_) {
    for (const Packing& packing : layer.packings) {
      for (const int64_t index : packing.parameters) {
        quantised[static_cast<size_t>(index)] = is_nvfp4(packing.to->format);
      }
    }
  }
  require_stored(*stored_, layout_, sites_.precision, quantised);
}

// The host packs, a matrix at a time: who uses weights as they are stored has no syncs.
void CudaModel::copy_stored(const Packing& packing) {
  const DeviceExperts& to = *packing.to;
  const auto bytes = static_cast<size_t>(kernels::cuda::fragment_bytes(to.n, to.k, to.format));
  const auto copy = [&](void* to_memory, const void* from, size_t size, cudaMemcpyKind kind) {
    check_cuda(cudaMemcpyAsync(to_memory, from, size, kind, context_.stream),
               "copying stored weights");
    check_cuda(cudaStreamSynchronize(context_.stream), "copying stored weights");
  };
  std::vector<int32_t> positions;
  if (packing.input->block_position != nullptr) {
    positions.resize(static_cast<size_t>(to.k / 16));
    copy(positions.data(), packing.input->block_position, positions.size() * sizeof(int32_t),
         cudaMemcpyDeviceToHost);
  }
  std::vector<uint8_t> fragments(bytes);
  for (size_t i = 0; i < packing.parameters.size(); ++i) {
    const StoredMatrix& matrix = stored_->at(packing.parameters[i]);
    kernels::cuda::pack_fragments(
        {to.n, to.k, matrix.global_scale, matrix.codes, matrix.block_scales}, positions, fragments,
        {.format = to.format, .paired = to.paired});
    copy(to.fragments.data() + i * bytes, fragments.data(), bytes, cudaMemcpyHostToDevice);
    copy(to.global_scales.data() + i, &matrix.global_scale, sizeof(float), cudaMemcpyHostToDevice);
  }
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
  for (const LayerPacking& layer : packings_) {
    const Bf16* range = staging_.data();
    if (const Bf16* all = source_.resident(); all != nullptr) {
      range = all + layer.range.offset;
    } else {
      source_.copy(layer.range.offset, layer.range.elements, staging_.data(), context_.stream);
    }
    for (const Packing& packing : layer.packings) {
      if (stored_ != nullptr && is_nvfp4(packing.to->format)) {
        copy_stored(packing);
      } else {
        quantise(packing, range, amax);
      }
      amax += packing.to->matrices;
    }
  }
  std::vector<uint32_t> bits(static_cast<size_t>(amax_bits_.size()));
  check_cuda(cudaMemcpyAsync(bits.data(), amax_bits_.data(), amax_bits_.bytes(),
                             cudaMemcpyDeviceToHost, context_.stream),
             "copying from the device");
  check_cuda(cudaStreamSynchronize(context_.stream), "quantising the weights");
  require_finite(bits);
}

void CudaModel::require_finite(const std::vector<uint32_t>& amax_bits) const {
  size_t next = 0;
  for (const int64_t index : plain_parameters_) {
    require_quantisable(source_, index, amax_bits[next++], WeightFormat::kBf16);
  }
  for (const LayerPacking& layer : packings_) {
    for (const Packing& packing : layer.packings) {
      for (const int64_t index : packing.parameters) {
        require_quantisable(source_, index, amax_bits[next++], packing.to->format);
      }
    }
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
  for (const LayerPacking& layer : packings_) {
    for (const Packing& packing : layer.packings) {
      bytes +=
          static_cast<int64_t>(packing.to->fragments.bytes() + packing.to->global_scales.bytes());
    }
  }
  return bytes;
}

}  // namespace quads::cuda
