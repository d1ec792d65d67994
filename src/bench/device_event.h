// A point in a GPU's stream, for the time between two of them.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/context.h"

namespace quads::bench {

class DeviceEvent {
 public:
  DeviceEvent() { kernels::cuda::check_cuda(cudaEventCreate(&event_), "making an event"); }
  ~DeviceEvent() { cudaEventDestroy(event_); }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  void record(cudaStream_t stream) const {
    kernels::cuda::check_cuda(cudaEventRecord(event_, stream), "recording an event");
  }
  /// Both must have been reached.
  double seconds_since(const DeviceEvent& begin) const {
    float ms = 0.0F;
    kernels::cuda::check_cuda(cudaEventElapsedTime(&ms, begin.event_, event_), "timing");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace quads::bench
