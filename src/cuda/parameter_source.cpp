#include "cuda/parameter_source.h"

#include "kernels/cuda/fill_random.h"

namespace quads::cuda {

void HostParameters::copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const {
  check_cuda(
      cudaMemcpyAsync(to, parameters_.values() + offset, static_cast<size_t>(count) * sizeof(Bf16),
                      cudaMemcpyHostToDevice, stream),
      "copying parameters to the device");
}

std::string HostParameters::find_bad(int64_t parameter, uint32_t limit) const {
  const Parameter& p = layout().at(parameter);
  const Bf16* values = parameters_.of(parameter);
  for (int64_t i = 0; i < p.size(); ++i) {
    if ((values[i].bits & 0x7FFFU) > limit) return locate(p, i);
  }
  return "tensor " + p.name;
}

void RandomParameters::copy(int64_t offset, int64_t count, Bf16* to, cudaStream_t stream) const {
  const kernels::cuda::CudaContext context = kernels::cuda::make_context(stream);
  // Parameters lie one after another; those that the range touches are filled one by one.
  for (const Parameter& p : layout_.parameters) {
    const int64_t begin = std::max(offset, p.offset);
    const int64_t end = std::min(offset + count, p.offset + p.padded_size());
    if (begin >= end) continue;
    kernels::cuda::fill_random(
        context, {.values = to + (begin - offset),
                  .count = end - begin,
                  .first = begin,
                  .valid = std::max<int64_t>(0, std::min(end, p.offset + p.size()) - begin),
                  .mean = p.vector ? p.initial : 0.0F,
                  .deviation = p.vector ? 0.0F : static_cast<float>(config_.initializer_range)});
  }
}

}  // namespace quads::cuda
