#include "eval/device.h"

#include "base/error.h"
#ifdef QUADS_HAVE_CUDA
#include "cuda/device.h"
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

#ifdef QUADS_HAVE_CUDA
void require_available(Device device) {
  if (device == Device::kCuda) cuda::require_device();
}

std::unique_ptr<EngineGenerator> make_cuda_generator(const ParameterFiles& files,
                                                     const GeneratorOptions& options,
                                                     std::span<const Request> calibration,
                                                     const GenerateOptions& sampling) {
  cuda::require_device();
  return std::make_unique<CudaGenerator>(std::make_unique<cuda::FileParameters>(files), options,
                                         calibration, sampling);
}
#else
void require_available(Device device) {
  if (device == Device::kCuda) fail_without_cuda();
}

std::unique_ptr<EngineGenerator> make_cuda_generator(const ParameterFiles&, const GeneratorOptions&,
                                                     std::span<const Request>,
                                                     const GenerateOptions&) {
  fail_without_cuda();
}
#endif

}  // namespace quads
