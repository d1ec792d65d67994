#include "rl/sides.h"

#ifdef QUADS_HAVE_CUDA
#include "rl/cuda_sides.h"
#endif

namespace quads {

std::unique_ptr<Sides> make_sides(Device device, kernels::CpuRuntime& runtime, Parameters& policy,
                                  const SidesOptions& options, const ForeignKernels* foreign) {
  if (device == Device::kCpu) return make_cpu_sides(runtime, policy, options, foreign);
#ifdef QUADS_HAVE_CUDA
  return make_cuda_sides(cuda::HostParameters(policy), &policy, options, foreign);
#else
  fail_without_cuda();
#endif
}

std::unique_ptr<TrainerSide> make_trainer_side(Device device, kernels::CpuRuntime& runtime,
                                               Parameters& policy,
                                               const TrainerSideOptions& options) {
  if (device == Device::kCpu) return make_cpu_trainer_side(runtime, policy, options);
#ifdef QUADS_HAVE_CUDA
  return make_cuda_trainer_side(cuda::HostParameters(policy), &policy, options);
#else
  fail_without_cuda();
#endif
}

}  // namespace quads
