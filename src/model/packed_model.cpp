#include "model/packed_model.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/block_order.h"
#include "model/rope.h"
#include "numerics/nvfp4.h"

namespace quads {

using kernels::PackedMatrix;
using kernels::WeightFormat;

namespace {

WeightFormat weight_format(Format format) {
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

}  // namespace

kernels::ActivationFormat activation_format(Format format) {
  switch (format) {
    case Format::kBf16:
      return kernels::ActivationFormat::kBf16;
    case Format::kFp8:
      return kernels::ActivationFormat::kFp8;
    case Format::kNvfp4:
      return kernels::ActivationFormat::kNvfp4;
  }
  return kernels::ActivationFormat::kBf16;
}

PackedModel::PackedModel(const Parameters& parameters, const Options& options)
    : parameters_(parameters),
      options_(options),
      sites_{parameters.config(), options.precision, options.scope},
      rope_(make_rope_table(parameters.config().rope, parameters.config().head_dim)) {
  const ModelConfig& c = parameters.config();
  const ParameterLayout& layout = parameters.layout();
  const auto eps = static_cast<float>(c.rms_norm_eps);
  const PackedModel* share = options.share;
  layers_.resize(static_cast<size_t>(c.num_hidden_layers));
  orders_.resize(layers_.size() * kSites);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    Layer& layer = layers_[static_cast<size_t>(l)];
    const Layer* other = share ? &share->layers_[static_cast<size_t>(l)] : nullptr;
    const ParameterLayout::Layer& at = layout.layers[static_cast<size_t>(l)];

    kernels::AttentionBlock& attention = layer.attention;
    attention.hidden = c.hidden_size;
    attention.shape = {c.num_attention_heads, c.num_key_value_heads, c.head_dim,
                       1.0F / std::sqrt(static_cast<float>(c.head_dim))};
    attention.rms_eps = eps;
    attention.norm = parameters.of(at.input_norm);
    attention.qkv_bias = parameters.of(at.qkv_bias);
    attention.whole_qk_norm = c.qk_norm() == QkNorm::kProjection;
    attention.q_norm = parameters.of(at.q_norm);
    attention.k_norm = parameters.of(at.k_norm);
    add_matrix(l, static_cast<int>(Site::kAttentionIn), at.qkv, &attention.qkv.weight,
               &layer.attention_transposed.qkv, other ? &other->attention.qkv.weight : nullptr);
    add_matrix(l, static_cast<int>(Site::kAttentionOut), at.o, &attention.out.weight,
               &layer.attention_transposed.out, other ? &other->attention.out.weight : nullptr);

    kernels::MoeBlock& ffn = layer.ffn;
    const bool sparse = at.router >= 0;
    ffn.hidden = c.hidden_size;
    ffn.width = sparse ? c.moe_intermediate_size : c.intermediate_size;
    ffn.experts = sparse ? c.num_experts : 1;
    ffn.shared_width = c.has_shared_expert(l) ? c.shared_expert_intermediate_size : 0;
    ffn.top_k = sparse ? c.num_experts_per_tok : 1;
    ffn.normalise_weights = c.norm_topk_prob;
    ffn.rms_eps = eps;
    ffn.norm = parameters.of(at.post_norm);
    if (sparse) {
      add_matrix(l, -1, at.router, &layer.router, &layer.router_transposed,
                 other ? &other->router : nullptr);
      ffn.router = &layer.router;
    }
    const size_t experts = at.gate_up.size();
    layer.gate_up.resize(experts);
    layer.down.resize(experts);
    layer.gate_up_transposed.resize(experts);
    layer.down_transposed.resize(experts);
    for (size_t e = 0; e < experts; ++e) {
      const bool shared = static_cast<int64_t>(e) == ffn.experts;
      const bool plain = shared && !sites_.quantised(l, Site::kSharedMid);
      const auto site = [&](Site s) { return plain ? -1 : static_cast<int>(s); };
      add_matrix(l, site(Site::kFfnIn), at.gate_up[e], &layer.gate_up[e],
                 &layer.gate_up_transposed[e], other ? &other->gate_up[e] : nullptr);
      add_matrix(l, site(shared ? Site::kSharedMid : Site::kFfnMid), at.down[e], &layer.down[e],
                 &layer.down_transposed[e], other ? &other->down[e] : nullptr);
    }
    ffn.gate_up = layer.gate_up.data();
    ffn.down = layer.down.data();
  }
  head_.hidden = c.hidden_size;
  head_.vocab = c.vocab_size;
  head_.rms_eps = eps;
  head_.norm = parameters.of(layout.final_norm);
  add_matrix(-1, -1, layout.head, &head_.weight, &head_transposed_,
             share ? &share->head_.weight : nullptr);
  if (options.stored) check_stored();
}

void PackedModel::check_stored() const {
  std::vector<bool> quantised(parameters_.layout().parameters.size());
  for (const Packing& packing : packings_) {
    quantised[static_cast<size_t>(packing.parameter)] =
        packing.matrix->format == WeightFormat::kNvfp4;
  }
  require_stored(*options_.stored, parameters_.layout(), sites_.precision, quantised);
}

const StoredMatrix* PackedModel::stored(const Packing& packing) const {
  const bool used = options_.stored && packing.matrix->format == WeightFormat::kNvfp4;
  return used ? &options_.stored->at(packing.parameter) : nullptr;
}

void PackedModel::add_matrix(int64_t layer, int site, int64_t parameter, PackedMatrix* matrix,
                             PackedMatrix* transposed, const PackedMatrix* shared) {
  const Parameter& p = parameters_.layout().at(parameter);
  const bool at_quantised_site = site >= 0 && sites_.quantised(layer, static_cast<Site>(site));
  const auto allocate = [&](int64_t bytes) -> uint8_t* {
    if (bytes == 0) return nullptr;
    packed_bytes_ += bytes;
    return buffers_.emplace_back(bytes).data();
  };
  matrix->format =
      at_quantised_site ? weight_format(sites_.precision.weights) : WeightFormat::kBf16;
  matrix->n = p.rows;
  matrix->k = p.cols;
  const bool borrowed = shared && matrix->format == WeightFormat::kBf16 &&
                        shared->format == WeightFormat::kBf16 && !at_quantised_site;
  if (borrowed) {
    *matrix = *shared;
  } else {
    matrix->tiles = allocate(kernels::packed_tile_bytes(matrix->format, p.rows, p.cols));
    matrix->scales = allocate(kernels::packed_scale_bytes(matrix->format, p.rows, p.cols));
  }
  if (matrix->format != WeightFormat::kBf16) {
    quantised_bytes_ += kernels::packed_tile_bytes(matrix->format, p.rows, p.cols) +
                        kernels::packed_scale_bytes(matrix->format, p.rows, p.cols);
    quantised_bytes_as_bf16_ += p.size() * static_cast<int64_t>(sizeof(Bf16));
  }
  if (options_.with_transposes) {
    transposed->format = WeightFormat::kBf16;
    transposed->n = p.cols;
    transposed->k = (p.rows + 31) / 32 * 32;
    transposed->tiles =
        allocate(kernels::packed_tile_bytes(WeightFormat::kBf16, transposed->n, transposed->k));
  } else {
    transposed = nullptr;
  }
  packings_.push_back(
      {parameter, matrix, transposed, layer, at_quantised_site ? site : -1, borrowed});
}

void PackedModel::update_masks(const RacMasks& masks) {
  const bool compensated = sites_.compensated();
  if (compensated) {
    require(masks.masks.size() == orders_.size(),
            "compensation masks for {} sites given, the model has {}", masks.masks.size(),
            orders_.size());
    masks_ = masks;
  }
  for (int64_t l = 0; l < num_layers(); ++l) {
    for (int s = 0; s < kSites; ++s) {
      const auto site = static_cast<Site>(s);
      SiteOrder& order = orders_[static_cast<size_t>(l * kSites + s)];
      order = {};
      if (compensated && sites_.quantised(l, site)) {
        const std::vector<uint8_t>& mask = masks.at(l, site);
        const int64_t k = sites_.width(l, site);
        require(std::ssize(mask) == k,
                "the compensation mask of layer {}, site {} has {} channels, not {}", l, s,
                mask.size(), k);
        const BlockOrder blocks = compensated_first(mask);
        order.residual_tiles = (blocks.compensated + 1) / 2;
        if (!std::ranges::is_sorted(blocks.position)) order.block_position = blocks.position;
        order.channel_mask = mask;
      }
      const kernels::QuantizeSpec spec = make_spec(l, site);
      Layer& layer = layers_[static_cast<size_t>(l)];
      switch (site) {
        case Site::kAttentionIn:
          layer.attention.qkv.input = spec;
          break;
        case Site::kAttentionOut:
          layer.attention.out.input = spec;
          break;
        case Site::kFfnIn:
          layer.ffn.gate_up_input = spec;
          layer.ffn.shared_gate_up_input =
              sites_.quantised(l, Site::kSharedMid) ? spec : kernels::QuantizeSpec{.k = spec.k};
          break;
        case Site::kFfnMid:
          layer.ffn.down_input = spec;
          break;
        case Site::kSharedMid:
          layer.ffn.shared_down_input = spec;
          break;
      }
    }
  }
}

kernels::QuantizeSpec PackedModel::make_spec(int64_t layer, Site site) const {
  kernels::QuantizeSpec spec;
  spec.k = sites_.width(layer, site);
  if (!sites_.quantised(layer, site)) return spec;
  const SiteOrder& order = orders_[static_cast<size_t>(layer * kSites + static_cast<int>(site))];
  spec.format = activation_format(sites_.precision.activations);
  spec.out_scale = kernels::activation_scale(weight_format(sites_.precision.weights));
  spec.residual_tiles = order.residual_tiles;
  spec.block_position = order.block_position.empty() ? nullptr : order.block_position.data();
  spec.channel_mask = order.residual_tiles > 0 ? order.channel_mask.data() : nullptr;
  spec.scale_floor = sites_.precision.rac.scale_floor;
  return spec;
}

void PackedModel::find_scale(const kernels::CpuContext& context, const Packing& packing) {
  if (const StoredMatrix* weights = stored(packing)) {
    packing.matrix->alpha = weights->global_scale;
    return;
  }
  const Parameter& p = parameters_.layout().at(packing.parameter);
  const Bf16* values = parameters_.of(packing.parameter);
  const kernels::AmaxResult amax = context.gemm().amax(values, p.size());
  require(amax.non_finite < 0, "{} is not finite ({})", locate(p, amax.non_finite),
          to_float(values[std::max<int64_t>(amax.non_finite, 0)]));
  packing.matrix->alpha = 1.0F;
  if (packing.matrix->format == WeightFormat::kNvfp4) {
    // Rounding may raise a value by 1/16: it must stay within BF16's range.
    require(amax.amax < 0x1.ep127F, "tensor {}: amax {} is too large for NVFP4 values in BF16",
            p.name, amax.amax);
    packing.matrix->alpha = global_scale_pow2(amax.amax);
  }
}

void PackedModel::pack_rows(const kernels::CpuContext& context, const Packing& packing,
                            int64_t begin, int64_t end) {
  const int32_t* block_position = nullptr;
  if (packing.site >= 0) {
    const SiteOrder& order = orders_[static_cast<size_t>(packing.layer * kSites + packing.site)];
    if (!order.block_position.empty()) block_position = order.block_position.data();
  }
  if (const StoredMatrix* weights = stored(packing)) {
    kernels::pack_stored_nvfp4({.codes = weights->codes.data(),
                                .block_scales = weights->block_scales.data(),
                                .block_position = block_position,
                                .out = packing.matrix,
                                .n_begin = begin,
                                .n_end = end});
    return;
  }
  kernels::PackArgs args;
  args.w = parameters_.of(packing.parameter);
  args.ldw = parameters_.layout().at(packing.parameter).cols;
  args.global_scale = packing.matrix->alpha;
  args.block_position = block_position;
  args.out = packing.matrix;
  args.n_begin = begin;
  args.n_end = end;
  context.gemm().pack(args);
}

void PackedModel::refresh(const kernels::CpuContext& context, const RacMasks& masks) {
  update_masks(masks);
  constexpr int64_t kStrip = 128;  // rows of a packing task; FP8's block
  // A matrix that may still be in the cache when its scale is known is packed at once.
  constexpr int64_t kCachedBytes = int64_t{8} << 20;
  const auto cached = [](const Parameter& p) {
    return p.size() * static_cast<int64_t>(sizeof(Bf16)) <= kCachedBytes;
  };
  struct Task {
    const Packing* packing;
    int64_t begin, end;
  };
  std::vector<Task> strips, transposes;
  for (const Packing& packing : packings_) {
    const Parameter& p = parameters_.layout().at(packing.parameter);
    if (!packing.borrowed && !cached(p)) {
      for (int64_t n = 0; n < p.rows; n += kStrip) {
        strips.push_back({&packing, n, std::min(p.rows, n + kStrip)});
      }
    }
    if (packing.transposed) {
      for (int64_t k = 0; k < p.cols; k += kStrip) {
        transposes.push_back({&packing, k, std::min(p.cols, k + kStrip)});
      }
    }
  }
  // Global scales first: they belong to whole tensors (gate and up, q, k and v together).
  context.parallel_for(std::ssize(packings_), [&](int64_t i, int) {
    const Packing& packing = packings_[static_cast<size_t>(i)];
    const Parameter& p = parameters_.layout().at(packing.parameter);
    find_scale(context, packing);
    if (!packing.borrowed && cached(p)) pack_rows(context, packing, 0, p.rows);
  });
  context.parallel_for(std::ssize(strips), [&](int64_t i, int) {
    const auto& [packing, begin, end] = strips[static_cast<size_t>(i)];
    pack_rows(context, *packing, begin, end);
  });
  context.parallel_for(std::ssize(transposes), [&](int64_t i, int) {
    const auto& [packing, begin, end] = transposes[static_cast<size_t>(i)];
    const Parameter& p = parameters_.layout().at(packing->parameter);
    const PackedMatrix& matrix = *packing->matrix;
    const int64_t padded_rows = packing->transposed->k;
    if (matrix.format == WeightFormat::kBf16) {
      kernels::pack_transposed_bf16(parameters_.of(packing->parameter), padded_rows, p.cols, p.cols,
                                    packing->transposed, begin, end);
    }
  });
  // Quantised weights go back through their dequantised values: straight-through gradients multiply
  // with what the forward multiplied with.
  context.parallel_for(std::ssize(packings_), [&](int64_t i, int worker) {
    const Packing& packing = packings_[static_cast<size_t>(i)];
    if (!packing.transposed || packing.matrix->format == WeightFormat::kBf16) return;
    const Parameter& p = parameters_.layout().at(packing.parameter);
    Arena& arena = context.arena(worker);
    const ArenaScope scope(arena);
    const int64_t padded_rows = packing.transposed->k;
    Bf16* values = arena.alloc<Bf16>(padded_rows * p.cols);
    std::fill_n(values + p.size(), (padded_rows - p.rows) * p.cols, Bf16{0});
    const SiteOrder& order = orders_[static_cast<size_t>(packing.layer * kSites + packing.site)];
    kernels::unpack(*packing.matrix,
                    order.block_position.empty() ? nullptr : order.block_position.data(), values,
                    p.cols);
    kernels::pack_transposed_bf16(values, padded_rows, p.cols, p.cols, packing.transposed, 0,
                                  p.cols);
  });
}

kernels::MoeTransposed PackedModel::ffn_transposed(int64_t layer) const {
  const Layer& l = at(layer);
  return {l.ffn.router ? &l.router_transposed : nullptr, l.gate_up_transposed.data(),
          l.down_transposed.data()};
}

}  // namespace quads
