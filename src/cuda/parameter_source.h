// Where a device gets its parameters from: the host's, files, the device's own, or random ones made
// in place for benchmarks.
#pragma once

#include <array>

#include "base/thread_pool.h"
#include "cuda/device_memory.h"
#include "model/parameter_files.h"

namespace quads::cuda {

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const ParameterLayout& layout() const = 0;
  /// Elements [offset, offset + count) of the flat array (model/parameters.h) to the device.
  virtual void copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const = 0;
  /// The flat array where it lies on the device, so that nobody needs a copy; otherwise null.
  virtual const Bf16* resident() const { return nullptr; }
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

/// Values in files. The host holds 32 MiB of them at a time, so the model may be larger than its
/// memory; every refresh reads them again.
class FileParameters : public ParameterSource {
 public:
  /// `files` must outlive this object.
  explicit FileParameters(const ParameterFiles& files);
  ~FileParameters() override;
  const ModelConfig& config() const override { return files_.config(); }
  const ParameterLayout& layout() const override { return files_.layout(); }
  /// Error on a value that is not finite.
  void copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const override;
  std::string find_bad(int64_t parameter, uint32_t limit) const override;

 private:
  // Filled while the other one is copied.
  struct Staging {
    PinnedArray<Bf16> values;
    cudaEvent_t copied = nullptr;
  };

  const ParameterFiles& files_;
  mutable ThreadPool threads_;
  mutable std::array<Staging, 2> staging_;
  mutable size_t next_ = 0;
};

/// Values that live on the device, as the flat array: what an optimizer there writes.
class DeviceParameters : public ParameterSource {
 public:
  /// Starts with the values of `initial`, which need not outlive this object.
  DeviceParameters(const ParameterSource& initial, cudaStream_t stream);
  const ModelConfig& config() const override { return config_; }
  const ParameterLayout& layout() const override { return layout_; }
  void copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const override;
  const Bf16* resident() const override { return values_.data(); }
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
