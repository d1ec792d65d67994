// A model's weights as one side (rollout or trainer) multiplies with them: quantised and packed
// into the kernels' layout. A pure function of (parameters, precision, scope, masks), refreshed in
// place.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/head_block.h"
#include "kernels/cpu/moe_block.h"
#include "kernels/rope.h"
#include "model/parameters.h"
#include "model/sites.h"
#include "model/stored_weights.h"

namespace quads {

/// How the kernels call it.
kernels::ActivationFormat activation_format(Format format);

class PackedModel {
 public:
  struct Options {
    Precision precision;
    QuantizeScope scope{};
    /// Also keep BF16 transposes, for the backward.
    bool with_transposes = false;
    /// A model of the same parameters whose unquantised tensors serve here too, so that they are
    /// held once; it must be refreshed first and outlive this one. May be null.
    const PackedModel* share = nullptr;
    /// NVFP4 weights that are packed as they are instead of being made from the parameters; exactly
    /// the matrices that the precision quantises, or it is an error. The parameters then serve for
    /// everything else. Must outlive this model. May be null.
    const StoredWeights* stored = nullptr;
  };

  /// Allocates every buffer; addresses never change afterwards. `parameters` must outlive the
  /// model: norms, the router's and the embedding's values are read from it.
  PackedModel(const Parameters& parameters, const Options& options);
  PackedModel(const PackedModel&) = delete;
  PackedModel& operator=(const PackedModel&) = delete;

  /// Quantises and packs the parameters' present values under `masks` (ignored without
  /// compensation; empty masks then are an error). Error naming tensor, row and column on a NaN or
  /// an infinity, or on a value whose quantisation leaves BF16's range.
  void refresh(const kernels::CpuContext& context, const RacMasks& masks);

  const ModelConfig& config() const { return parameters_.config(); }
  const Parameters& parameters() const { return parameters_; }
  const QuantisedSites& sites() const { return sites_; }
  const Precision& precision() const { return sites_.precision; }
  const QuantizeScope& scope() const { return sites_.scope; }
  const RacMasks& masks() const { return masks_; }
  int64_t num_layers() const { return std::ssize(layers_); }

  const kernels::AttentionBlock& attention(int64_t layer) const { return at(layer).attention; }
  const kernels::MoeBlock& ffn(int64_t layer) const { return at(layer).ffn; }
  const kernels::HeadBlock& head() const { return head_; }
  const kernels::AttentionTransposed& attention_transposed(int64_t layer) const {
    return at(layer).attention_transposed;
  }
  kernels::MoeTransposed ffn_transposed(int64_t layer) const;
  const kernels::PackedMatrix& head_transposed() const { return head_transposed_; }

  /// Bytes of the quantised matrices (codes and scales), and of the same matrices in BF16.
  int64_t quantised_bytes() const { return quantised_bytes_; }
  int64_t quantised_bytes_as_bf16() const { return quantised_bytes_as_bf16_; }
  int64_t packed_bytes() const { return packed_bytes_; }

  /// cos and sin [positions][head_dim / 2] for positions < max_positions.
  const float* cos(int64_t max_positions) { return rope_.cos(max_positions); }
  const float* sin(int64_t max_positions) { return rope_.sin(max_positions); }

 private:
  struct Layer {
    kernels::AttentionBlock attention{};
    kernels::MoeBlock ffn{};
    kernels::AttentionTransposed attention_transposed{};
    kernels::PackedMatrix router{};
    std::vector<kernels::PackedMatrix> gate_up, down;
    kernels::PackedMatrix router_transposed{};
    std::vector<kernels::PackedMatrix> gate_up_transposed, down_transposed;
  };
  /// What refresh does for one matrix.
  struct Packing {
    int64_t parameter;
    kernels::PackedMatrix* matrix;
    kernels::PackedMatrix* transposed;  // null: none
    int64_t layer;
    int site;       // index of the order of K; -1: BF16, not at a site
    bool borrowed;  // the tiles belong to options.share
  };
  struct SiteOrder {
    std::vector<int32_t> block_position;  // empty: identity
    std::vector<uint8_t> channel_mask;    // empty: no compensation
    int64_t residual_tiles = 0;
  };

  const Layer& at(int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }
  void add_matrix(int64_t layer, int site, int64_t parameter, kernels::PackedMatrix* matrix,
                  kernels::PackedMatrix* transposed, const kernels::PackedMatrix* shared);
  kernels::QuantizeSpec make_spec(int64_t layer, Site site) const;
  void check_stored() const;
  /// The checkpoint's own weights for this matrix; null: they are made from the parameters.
  const StoredMatrix* stored(const Packing& packing) const;
  void update_masks(const RacMasks& masks);
  /// Checks a matrix's values and sets its alpha. Error naming tensor, row and column.
  void find_scale(const kernels::CpuContext& context, const Packing& packing);
  void pack_rows(const kernels::CpuContext& context, const Packing& packing, int64_t begin,
                 int64_t end);

  const Parameters& parameters_;
  Options options_;
  QuantisedSites sites_;
  RacMasks masks_;
  std::vector<Layer> layers_;
  kernels::HeadBlock head_{};
  kernels::PackedMatrix head_transposed_{};
  std::vector<Packing> packings_;
  std::vector<SiteOrder> orders_;  // [layers * kSites]
  std::vector<AlignedBuffer<uint8_t>> buffers_;
  kernels::RopeTable rope_;
  int64_t quantised_bytes_ = 0;
  int64_t quantised_bytes_as_bf16_ = 0;
  int64_t packed_bytes_ = 0;
};

}  // namespace quads
