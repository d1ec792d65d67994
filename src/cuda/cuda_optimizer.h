// AdamW with masters, moments, gradients and parameters on the device: the CPU's bits.
#pragma once

#include "cuda/device_memory.h"
#include "cuda/parameter_source.h"
#include "kernels/cuda/gradients/adamw.h"
#include "trainer/optimizer.h"

namespace quads::cuda {

class CudaOptimizer : public Optimizer {
 public:
  /// Masters start as the values of `parameters`, which must outlive the optimizer.
  CudaOptimizer(cudaStream_t stream, DeviceParameters& parameters, const AdamwOptions& options);

  float* grads() override { return grads_.data(); }
  Result step(float lr, float grad_scale) override;
  std::span<const float> state(State which) override;
  void set_state(State which, std::span<const float> values) override;
  void publish() override;

 private:
  const DeviceArray<float>& array(State which) const;

  kernels::cuda::CudaContext context_;
  DeviceParameters& parameters_;
  AdamwOptions options_;
  DeviceArray<float> master_, m_, v_, grads_;
  DeviceArray<kernels::cuda::AdamwRange> ranges_;
  DeviceArray<double> squares_;
  std::vector<double> host_squares_;
  std::vector<float> host_state_;
};

}  // namespace quads::cuda
