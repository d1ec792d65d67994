// The instances of the row quantiser for FP8 and BF16.
#include "kernels/cuda/quantize/quantize_kernel.cuh"

namespace quads::kernels::cuda {

void launch_quantize_plain(const CudaContext& context, const QuantizeRows& args,
                           const QuantizeShape& shape) {
  const bool gated = args.gate_up != nullptr;
  if (args.format == WeightFormat::kFp8) {
    return gated ? launch_quantize<WeightFormat::kFp8, true>(context, args, shape)
                 : launch_quantize<WeightFormat::kFp8, false>(context, args, shape);
  }
  return gated ? launch_quantize<WeightFormat::kBf16, true>(context, args, shape)
               : launch_quantize<WeightFormat::kBf16, false>(context, args, shape);
}

}  // namespace quads::kernels::cuda
