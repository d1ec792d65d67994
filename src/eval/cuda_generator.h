// Sampling and scoring on a GPU.
#pragma once

#include "cuda/cuda_backend.h"
#include "eval/generator.h"

namespace quads {

class CudaGenerator : public EngineGenerator {
 public:
  /// What `source` refers to must outlive this object. Errors as CudaBackend's, on stored weights,
  /// and without a device.
  CudaGenerator(std::unique_ptr<cuda::ParameterSource> source, const GeneratorOptions& options,
                std::span<const Request> calibration, const GenerateOptions& sampling);

  cuda::CudaBackend& backend() { return backend_; }
  int64_t pages() const { return engine().cache().pages(); }

 private:
  std::unique_ptr<cuda::ParameterSource> source_;
  cuda::CudaBackend backend_;
};

}  // namespace quads
