// The trainer's weights for another engine (model/device_operands.h): the optimizer's BF16 values
// themselves where a precision leaves them alone, and what their quantised forms stand for, in
// BF16, where it does not.
#pragma once

#include <memory>
#include <vector>

#include "cuda/cuda_model.h"
#include "cuda/device_memory.h"
#include "cuda/device_rope.h"
#include "cuda/parameter_source.h"
#include "kernels/cuda/experts/activation_image.h"
#include "model/device_operands.h"

namespace quads::cuda {

class RoundedParameters : public DeviceOperands {
 public:
  /// On `stream`. `values` must outlive this object; `memory` is the engine's. Error if the
  /// precision compensates residuals, and where the memory does not suffice.
  RoundedParameters(cudaStream_t stream, const DeviceParameters& values, const Precision& precision,
                    const QuantizeScope& scope, int64_t max_positions, int64_t memory);

  /// Rounds the present values; returns when they and what was rounded are in place. Error naming
  /// tensor, row and column on a value that cannot be quantised.
  void refresh();

  const QuantisedSites& sites() const override { return sites_; }
  const ParameterLayout& layout() const override { return values_.layout(); }
  CUstream_st* stream() const override { return context_.stream; }
  const Bf16* weight(int64_t parameter) const override {
    return weights_[static_cast<size_t>(parameter)];
  }
  const float* cos() const override { return rope_.cos(); }
  const float* sin() const override { return rope_.sin(); }
  int64_t max_positions() const override { return rope_.max_positions(); }
  void fake_quantise(const Bf16* x, int64_t rows, int64_t width, Format format,
                     Bf16* values) const override;
  int64_t memory() const override { return memory_; }

 private:
  /// Matrices of one shape that lie at equal distances.
  struct Group {
    std::vector<int64_t> parameters;
    WeightFormat format;
    int64_t n, k;
    DeviceArray<Bf16> values;  // [matrices][n, k]
  };
  CudaContext context_;
  const DeviceParameters& values_;
  QuantisedSites sites_;
  DeviceRope rope_;
  int64_t memory_;
  std::vector<const Bf16*> weights_;  // of every parameter
  std::vector<Group> groups_;
  DeviceArray<uint8_t> fragments_;  // of one group
  DeviceArray<float> global_scales_;
  DeviceArray<uint32_t> amax_bits_;  // of every matrix
  DeviceArray<uint32_t> scratch_;    // quantize_weights' scratch
  DeviceArray<Bf16> image_;          // of quantised activations
  DeviceArray<kernels::cuda::ImageRow> image_rows_;
  DeviceArray<int32_t> first_bad_row_;
};

/// Bytes of what RoundedParameters holds besides `values`.
int64_t rounded_bytes(const ParameterLayout& layout, const QuantisedSites& sites);

}  // namespace quads::cuda
