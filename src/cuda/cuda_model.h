// A model's weights on the device, as the rollout multiplies with them: the counterpart of
// model/packed_model.h. A pure function of (parameters, precision, scope, masks), refreshed in
// place.
#pragma once

#include <vector>

#include "cuda/device_memory.h"
#include "cuda/parameter_source.h"
#include "kernels/cuda/weight_format.h"
#include "kernels/rope.h"
#include "model/sites.h"

namespace quads::cuda {

using kernels::cuda::CudaContext;
using kernels::cuda::WeightFormat;

WeightFormat device_format(Format format);

/// Quantised or plain matrices of one shape for the grouped product: a layer's experts, or the one
/// of a dense layer.
struct DeviceExperts {
  WeightFormat format = WeightFormat::kBf16;
  int matrices = 0;
  int64_t n = 0, k = 0;
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

struct DeviceLayer {
  const Bf16 *input_norm, *post_norm;
  const Bf16 *q_norm, *k_norm;  // null: none
  const Bf16 *qkv, *qkv_bias;   // the bias may be null
  const Bf16* out;
  const Bf16* router;  // null: dense
  int64_t top_k;       // 1 when dense
  DeviceExperts gate_up, down;
  DeviceSite gate_up_input, down_input;
};

class CudaModel {
 public:
  /// `source` must outlive the model. Allocates every buffer; addresses never change afterwards.
  /// Error, naming it, on what is not there for a GPU: linears other than experts quantised,
  /// shared experts, sizes that the kernels do not take; and where the memory does not suffice.
  CudaModel(cudaStream_t stream, const ParameterSource& source, const Precision& precision,
            const QuantizeScope& scope, int64_t max_positions);

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
  const float* cos() const { return cos_.data(); }
  const float* sin() const { return sin_.data(); }
  int64_t max_positions() const { return max_positions_; }

  /// Bytes of all weights on the device, of the quantised matrices, and of those in BF16.
  int64_t weight_bytes() const;
  int64_t quantised_bytes() const { return quantised_bytes_; }
  int64_t quantised_bytes_as_bf16() const { return quantised_bytes_as_bf16_; }

 private:
  /// Where a layer's experts lie in the flat array: gate_up and down of one after the other.
  struct ExpertRange {
    int64_t first, stride, down, count;  // of matrix pairs; `down` counts from an expert's gate_up
  };
  struct SiteBuffers {
    DeviceArray<int32_t> block_position;
    DeviceArray<uint8_t> channel_mask;
  };

  const Bf16* plain(int64_t parameter) const;
  void require_supported() const;
  void add_layer(int64_t index);
  DeviceExperts make_experts(int64_t matrices, int64_t n, int64_t k, bool quantised);
  DeviceSite make_site(int64_t layer, Site site);
  void update_masks(const RacMasks& masks);
  void update_site(int64_t layer, Site site, const RacMasks& masks, DeviceSite& device);
  void quantise(const DeviceExperts& experts, const Bf16* first, int64_t stride,
                const int32_t* block_position, uint32_t* amax_bits);
  void require_finite(const std::vector<uint32_t>& amax_bits) const;

  CudaContext context_;
  const ParameterSource& source_;
  const ParameterLayout& layout_;
  QuantisedSites sites_;
  int64_t max_positions_;
  std::vector<int64_t> plain_parameters_;  // that stay BF16, outside the experts
  std::vector<int64_t> plain_offset_;      // of every parameter in plain_; -1: not there
  DeviceArray<Bf16> plain_;
  DeviceArray<Bf16> staging_;  // a layer's experts
  std::vector<DeviceLayer> layers_;
  std::vector<ExpertRange> ranges_;
  std::vector<SiteBuffers> site_buffers_;  // [layers * kSites]
  DeviceArray<int64_t> residual_sums_;
  std::vector<int64_t> residual_offset_;  // [layers * kSites]; -1: none
  DeviceArray<uint32_t> amax_bits_;       // of plain parameters, then of every expert matrix
  DeviceArray<float> cos_, sin_;
  int64_t quantised_bytes_ = 0;
  int64_t quantised_bytes_as_bf16_ = 0;
};

}  // namespace quads::cuda
