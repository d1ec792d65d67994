// Checks of weights to be dequantised.
#include "kernels/cuda/quantize/dequantize_weights.h"

#include "base/error.h"

namespace quads::kernels::cuda {

void dequantize_weights(const CudaContext& context, const DequantizeWeights& args) {
  require(args.n >= 64 && args.n % 64 == 0 && args.k >= 16 && args.k % 16 == 0 &&
              args.k <= kMaxDequantizedK,
          "weights [{}, {}] cannot be dequantised: multiples of 64 and 16, k at most {}", args.n,
          args.k, kMaxDequantizedK);
  require(args.matrices >= 0, "dequantising {} matrices", args.matrices);
  if (args.matrices > 0) launch_dequantize_weights(context, args);
}

}  // namespace quads::kernels::cuda
