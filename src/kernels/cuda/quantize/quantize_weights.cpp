// Checks of a weights' quantisation.
#include "kernels/cuda/quantize/quantize_weights.h"

#include <cuda_runtime_api.h>

#include <climits>

#include "base/error.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/quantize/quantize_weights_launch.h"

namespace quads::kernels::cuda {
namespace {

void clear(const CudaContext& context, uint32_t* words, int64_t count) {
  check_cuda(
      cudaMemsetAsync(words, 0, static_cast<size_t>(count) * sizeof(uint32_t), context.stream),
      "clearing");
}

}  // namespace

void weight_amax(const CudaContext& context, const Bf16* w, int matrices, int64_t stride,
                 int64_t size, uint32_t* amax_bits) {
  require(matrices >= 1 && matrices <= kMaxExperts && size >= 8 && size % 8 == 0 && stride % 8 == 0,
          "amax of {} arrays of {} values, {} apart: multiples of 8, 1..{} arrays", matrices, size,
          stride, kMaxExperts);
  clear(context, amax_bits, matrices);
  launch_weight_amax(context, w, matrices, stride, size, amax_bits);
}

void quantize_weights(const CudaContext& context, const QuantizeWeights& args) {
  require(args.matrices >= 1 && args.matrices <= kMaxExperts,
          "quantising weights: {} matrices; 1..{}", args.matrices, kMaxExperts);
  require(args.n >= kTileRows && args.n % kTileRows == 0 && args.k >= 16 && args.k % 16 == 0,
          "quantising weights [{}, {}]: rows must be a multiple of {}, k of 16", args.n, args.k,
          kTileRows);
  require(args.amax_bits != nullptr && (args.scratch != nullptr || !is_nvfp4(args.format)),
          "quantising weights: no memory for amax_bits and scratch");
  require(args.stride % 8 == 0, "quantising weights: {} elements from one to the next",
          args.stride);
  require(args.block_position == nullptr || is_nvfp4(args.format),
          "quantising weights: only NVFP4 weights have blocks in another order");
  const int64_t tiles = args.matrices * (args.n / kTileRows) * stages_of(args.k);
  require(tiles <= INT_MAX / 4, "quantising weights: {} tiles are too many", tiles);
  clear(context, args.amax_bits, args.matrices);
  if (is_nvfp4(args.format)) {
    launch_pack_nvfp4(context, args);
  } else {
    launch_pack_plain(context, args);
  }
}

}  // namespace quads::kernels::cuda
