// The instances of the row quantiser for NVFP4.
#include "kernels/cuda/quantize_kernel.cuh"

namespace quads::kernels::cuda {

void launch_quantize_nvfp4(const CudaContext& context, const QuantizeRows& args,
                           const QuantizeShape& shape) {
  constexpr auto kFormat = WeightFormat::kNvfp4;
  const bool gated = args.gate_up != nullptr;
  if (args.residual_sums == nullptr) {
    return gated ? launch_quantize<kFormat, true>(context, args, shape)
                 : launch_quantize<kFormat, false>(context, args, shape);
  }
  return gated ? launch_quantize<kFormat, true, true>(context, args, shape)
               : launch_quantize<kFormat, false, true>(context, args, shape);
}

}  // namespace quads::kernels::cuda
