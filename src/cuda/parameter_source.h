// Where a device gets its parameters from: the host's, a shard of memory at a time, the device's
// own, or random ones made in place for benchmarks of models that the host could not hold.
#pragma once

#include "cuda/device_memory.h"
#include "model/parameters.h"

namespace quads::cuda {

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const ParameterLayout& layout() const = 0;
  /// Elements [offset, offset + count) of the flat array (model/parameters.h) to the device.
  virtual void copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const = 0;
  /// "tensor T, row R, column C" of the first value of a parameter that is not finite or beyond the
  /// magnitude of `limit` (BF16 bits), for messages.
  virtual std::string find_bad(int64_t parameter, uint32_t limit) const = 0;
};

class HostParameters : public ParameterSource {
 public:
  /// `parameters` must outlive this object.
  explicit HostParameters(const Parameters& parameters) : parameters_(parameters) {}
  const ModelConfig& config() const override { return parameters_.config(); }
  const ParameterLayout& layout() const override { return parameters_.layout(); }
  void copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const override;
  std::string find_bad(int64_t parameter, uint32_t limit) const override;

 private:
  const Parameters& parameters_;
};

/// Values that live on the device, as the flat array: what an optimizer there writes.
class DeviceParameters : public ParameterSource {
 public:
  /// Starts with the values of `initial`, which need not outlive this object.
  DeviceParameters(const ParameterSource& initial, cudaStream_t stream);
  const ModelConfig& config() const override { return config_; }
  const ParameterLayout& layout() const override { return layout_; }
  void copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const override;
  std::string find_bad(int64_t parameter, uint32_t limit) const override;

  Bf16* values() const { return values_.data(); }
  /// Brings the values to the host, for checkpoints; `to` is of the same configuration.
  void download(Parameters& to, cudaStream_t stream) const;

 private:
  ModelConfig config_;
  ParameterLayout layout_;
  DeviceArray<Bf16> values_;
};

/// Uniform weights with the standard deviation of the configuration, norms 1, biases 0; a function
/// of the element's place alone.
class RandomParameters : public ParameterSource {
 public:
  explicit RandomParameters(const ModelConfig& config) : config_(config), layout_(config) {}
  const ModelConfig& config() const override { return config_; }
  const ParameterLayout& layout() const override { return layout_; }
  void copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const override;
  std::string find_bad(int64_t, uint32_t) const override { return "a random weight"; }

 private:
  ModelConfig config_;
  ParameterLayout layout_;
};

}  // namespace quads::cuda
