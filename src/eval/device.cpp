#include "eval/device.h"

#include "base/error.h"
#ifdef QUADS_HAVE_CUDA
#include "eval/cuda_generator.h"
#endif

namespace quads {

Device parse_device(std::string_view name) {
  if (name == "cpu") return Device::kCpu;
  if (name == "cuda") return Device::kCuda;
  fail("device '{}': use cpu or cuda", name);
}

void fail_without_cuda() {
  fail("--device cuda: this program was built without CUDA; configure it with -DQUADS_CUDA=ON");
}

std::unique_ptr<EngineGenerator> make_engine_generator(Device device, kernels::CpuRuntime& runtime,
                                                       const Parameters& parameters,
                                                       const GeneratorOptions& options,
                                                       std::span<const Request> calibration,
                                                       const GenerateOptions& sampling) {
  if (device == Device::kCpu) {
    return std::make_unique<CpuGenerator>(runtime, parameters, options, calibration, sampling);
  }
#ifdef QUADS_HAVE_CUDA
  return std::make_unique<CudaGenerator>(std::make_unique<cuda::HostParameters>(parameters),
                                         options, calibration, sampling);
#else
  fail_without_cuda();
#endif
}

}  // namespace quads
