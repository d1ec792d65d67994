// The angles of a model's RoPE on the device.
#pragma once

#include "cuda/device_memory.h"
#include "io/model_config.h"

namespace quads::cuda {

class DeviceRope {
 public:
  /// For positions < max_positions; they are there when it returns.
  DeviceRope(const ModelConfig& config, int64_t max_positions, cudaStream_t stream);
  const float* cos() const { return cos_.data(); }  // [max_positions][head_dim / 2]
  const float* sin() const { return sin_.data(); }
  int64_t max_positions() const { return max_positions_; }

 private:
  int64_t max_positions_;
  DeviceArray<float> cos_, sin_;
};

}  // namespace quads::cuda
