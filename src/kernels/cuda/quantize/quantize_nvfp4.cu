// The instances of the row quantiser for NVFP4.
#include "kernels/cuda/quantize/quantize_kernel.cuh"

namespace quads::kernels::cuda {
namespace {

template <WeightFormat format>
void run(const CudaContext& context, const QuantizeRows& args, const QuantizeShape& shape) {
  const bool gated = args.gate_up != nullptr;
  if (args.residual_sums == nullptr) {
    return gated ? launch_quantize<format, true>(context, args, shape)
                 : launch_quantize<format, false>(context, args, shape);
  }
  return gated ? launch_quantize<format, true, true>(context, args, shape)
               : launch_quantize<format, false, true>(context, args, shape);
}

}  // namespace

void launch_quantize_nvfp4(const CudaContext& context, const QuantizeRows& args,
                           const QuantizeShape& shape) {
  if (args.format == WeightFormat::kNvfp4Fp16) {
    return run<WeightFormat::kNvfp4Fp16>(context, args, shape);
  }
  run<WeightFormat::kNvfp4>(context, args, shape);
}

}  // namespace quads::kernels::cuda
