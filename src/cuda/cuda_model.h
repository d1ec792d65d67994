// A model's weights on the device, as the rollout multiplies with them: the counterpart of
// model/packed_model.h. A pure function of (parameters, precision, scope, masks), refreshed in
// place.
#pragma once

#include <vector>

#include "cuda/device_memory.h"
#include "cuda/device_rope.h"
#include "cuda/parameter_source.h"
#include "kernels/cuda/experts/weight_format.h"
#include "model/sites.h"
#include "model/stored_weights.h"

namespace quads::cuda {

using kernels::cuda::CudaContext;
using kernels::cuda::WeightFormat;

/// How a device holds weights or activations of `format`: under a floor of residual scales the one
/// pass of WeightFormat::kNvfp4Fp16.
WeightFormat device_format(Format format, const Rac& rac);

/// Quantised or plain matrices of one shape for the grouped product: a layer's experts, or one that
/// every row takes.
struct DeviceExperts {
  WeightFormat format = WeightFormat::kBf16;
  int matrices = 0;
  int64_t n = 0, k = 0;
  bool paired =
      false;  // gates and ups: fragments in the order of kernels/cuda/experts/paired_rows.h
  DeviceArray<uint8_t> fragments;
  DeviceArray<float> global_scales;
};

/// How the inputs of a site are quantised; device pointers.
struct DeviceSite {
  WeightFormat format = WeightFormat::kBf16;  // of the values
  const int32_t* block_position = nullptr;
  const uint8_t* channel_mask = nullptr;
  int residual_blocks = 0;
  int64_t* residual_sums = nullptr;  // [k]; null: the site has no residuals
};

/// A projection of attention.
struct DeviceLinear {
  const Bf16* plain = nullptr;  // [n, k] as the trainer holds it; null: quantised
  DeviceExperts quantised;      // one matrix
  DeviceSite input;
};

/// Experts that a router chooses from, or one expert that every row takes.
struct DeviceFfn {
  DeviceExperts gate_up, down;
  DeviceSite gate_up_input, down_input;
};

struct DeviceLayer {
  const Bf16* input_norm = nullptr;
  const Bf16* post_norm = nullptr;
  const Bf16* q_norm = nullptr;  // null: none
  const Bf16* k_norm = nullptr;
  DeviceLinear qkv, out;
  const Bf16* qkv_bias = nullptr;  // null: none
  const Bf16* router = nullptr;    // null: dense; its last row is the shared expert's gate
  int64_t top_k = 1;               // 1 when dense
  DeviceFfn ffn;                   // the experts, or the one of a dense layer
  DeviceFfn shared;                // no matrices: the layer has no shared expert

  bool has_shared() const { return shared.gate_up.matrices > 0; }
  int64_t router_rows() const { return ffn.gate_up.matrices + (has_shared() ? 1 : 0); }
};

/// A parameter that is a matrix of a grouped product.
struct PackedParameter {
  int64_t index;
  WeightFormat format;
};
/// Those of a layer, in the order of the flat array.
std::vector<PackedParameter> packed_parameters(const ParameterLayout& layout,
                                               const QuantisedSites& sites, int64_t layer);
/// The range of the flat array that holds them.
struct ParameterRange {
  int64_t offset, elements;
};
ParameterRange range_of(const ParameterLayout& layout,
                        const std::vector<PackedParameter>& parameters);

/// Error naming the value unless a matrix of this amax (quantize_weights.h) can be held in
/// `format`.
void require_quantisable(const ParameterSource& source, int64_t parameter, uint32_t amax_bits,
                         WeightFormat format);

class CudaModel {
 public:
  /// `source` must outlive the model. Allocates every buffer; addresses never change afterwards.
  /// `stored` as PackedModel::Options has it. Error, naming it, on sizes that the kernels do not
  /// take, and where the memory does not suffice.
  CudaModel(cudaStream_t stream, const ParameterSource& source, const Precision& precision,
            const QuantizeScope& scope, int64_t max_positions,
            const StoredWeights* stored = nullptr);

  /// As PackedModel::refresh; returns when the weights are in place.
  void refresh(const RacMasks& masks);
  /// Sums of residuals since the last call, [layers * kSites], empty where there are none; from now
  /// on they are 0.
  std::vector<std::vector<int64_t>> take_residual_sums();

  const ModelConfig& config() const { return source_.config(); }
  const QuantisedSites& sites() const { return sites_; }
  const DeviceLayer& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  const Bf16* embedding() const { return plain(layout_.embedding); }
  const Bf16* final_norm() const { return plain(layout_.final_norm); }
  const Bf16* head() const { return plain(layout_.head); }
  const float* cos() const { return rope_.cos(); }
  const float* sin() const { return rope_.sin(); }
  int64_t max_positions() const { return rope_.max_positions(); }

  /// Bytes of all weights on the device, of the quantised matrices, and of those in BF16.
  int64_t weight_bytes() const;
  int64_t quantised_bytes() const { return quantised_bytes_; }
  int64_t quantised_bytes_as_bf16() const { return quantised_bytes_as_bf16_; }

 private:
  /// Matrices of one shape that are quantised together. They lie at equal distances.
  struct Packing {
    const DeviceExperts* to;
    const DeviceSite* input;
    std::vector<int64_t> parameters;
    int64_t first, stride;  // elements; `first` from the begin of the layer's range
  };
  /// What a refresh does with a layer: it copies the range unless it is on the device already, and
  /// packs from there.
  struct LayerPacking {
    ParameterRange range;
    std::vector<Packing> packings;
  };
  struct SiteBuffers {
    DeviceArray<int32_t> block_position;
    DeviceArray<uint8_t> channel_mask;
  };

  const Bf16* plain(int64_t parameter) const;
  void require_supported() const;
  void add_layer(int64_t index);
  void add_linear(int64_t layer, Site site, int64_t parameter, DeviceLinear& linear);
  void add_ffn(int64_t layer, bool shared, DeviceFfn& ffn);
  void add_packing(int64_t layer, WeightFormat format, std::vector<int64_t> parameters,
                   const DeviceSite& input, DeviceExperts& to);
  DeviceSite make_site(int64_t layer, Site site);
  void update_masks(const RacMasks& masks);
  void update_site(int64_t layer, Site site, const RacMasks& masks, DeviceSite& device);
  void quantise(const Packing& packing, const Bf16* range, uint32_t* amax_bits);
  void check_stored() const;
  void copy_stored(const Packing& packing);
  void require_finite(const std::vector<uint32_t>& amax_bits) const;

  CudaContext context_;
  const ParameterSource& source_;
  const ParameterLayout& layout_;
  QuantisedSites sites_;
  DeviceRope rope_;
  const StoredWeights* stored_;
  std::vector<int64_t> plain_parameters_;  // that stay as they are
  std::vector<int64_t> plain_offset_;      // of every parameter in plain_; -1: not there
  DeviceArray<Bf16> plain_;
  DeviceArray<Bf16> staging_;  // a layer's range; empty if the source is on the device
  std::vector<DeviceLayer> layers_;
  std::vector<LayerPacking> packings_;     // of every layer
  std::vector<SiteBuffers> site_buffers_;  // [layers * kSites]
  DeviceArray<int64_t> residual_sums_;
  std::vector<int64_t> residual_offset_;  // [layers * kSites]; -1: none
  DeviceArray<uint32_t> amax_bits_;       // of plain parameters, then of every packed one
  DeviceArray<uint32_t> scratch_;         // quantize_weights' scratch
  int64_t quantised_bytes_ = 0;
  int64_t quantised_bytes_as_bf16_ = 0;
};

}  // namespace quads::cuda
