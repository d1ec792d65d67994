// Where the time of a step on a GPU goes, by kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "kernels/cuda/context.h"

namespace quads::bench {

/// Records an event before every launch. A step begins with the embedding; in front of it the
/// stream is kept busy, so that launches wait for the device and not the device for launches, and
/// an event's distance from the next is its kernel's time.
class KernelTimes : public kernels::cuda::LaunchObserver {
 public:
  ~KernelTimes() override;
  void launching(const char* kernel, kernels::cuda::Stream stream) override;

  struct Entry {
    std::string kernel;
    int64_t calls;
    double microseconds;  // of all calls
  };
  /// Of the last step, the longest first. The stream must be idle.
  std::vector<Entry> last_step();

 private:
  struct Launch {
    const char* kernel;
    cudaEvent_t before;
  };
  cudaEvent_t record(kernels::cuda::Stream stream);

  std::vector<Launch> launches_;  // of the step
  std::vector<cudaEvent_t> unused_;
  kernels::cuda::Stream stream_ = nullptr;
};

}  // namespace quads::bench
