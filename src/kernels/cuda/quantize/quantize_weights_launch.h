// What lies between checking a weights' quantisation and its kernels.
#pragma once

#include "kernels/cuda/quantize/quantize_weights.h"

namespace quads::kernels::cuda {

/// Raises amax_bits.
void launch_weight_amax(const CudaContext& context, const Bf16* w, int matrices, int64_t stride,
                        int64_t size, uint32_t* amax_bits);
/// These expect amax_bits to be 0.
void launch_pack_nvfp4(const CudaContext& context, const QuantizeWeights& args);
void launch_pack_plain(const CudaContext& context, const QuantizeWeights& args);

}  // namespace quads::kernels::cuda
