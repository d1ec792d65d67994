// Weights: a thread a block of 16, padding included.
#include "kernels/cuda/launch.cuh"
#include "kernels/native_fp4/layout.h"
#include "kernels/native_fp4/pack_launch.h"

namespace quads::kernels::native_fp4 {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    pack_weights_kernel(PackWeights args, PackedShape shape, int64_t threads) {
  cuda::wait_for_previous_kernel();
  const int64_t padded_n = round_up(args.n, kTileRows);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < threads;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t to = i % shape.columns;  // the block along k'
    const int64_t row = i / shape.columns % padded_n;
    const int64_t group = i / shape.columns / padded_n;
    const int64_t blocks = args.k / kBlock;
    int64_t from = -1;  // nothing: zeros
    if (to < blocks) {
      from = to;
    } else if (to - blocks < args.selected_blocks) {
      from = args.selected[to - blocks];
    }
    const bool filled = from >= 0 && row < args.n;
    const int64_t source = (group * args.n + row) * blocks + from;
    args.packed_scales[group * padded_n * shape.columns + scale_offset(row, to, shape.columns)] =
        filled ? args.block_scales[source] : uint8_t{0};
    if (row < args.n && to < shape.k / kBlock) {
      reinterpret_cast<uint2*>(
          args.packed_codes)[(group * args.n + row) * (shape.k / kBlock) + to] =
          filled ? reinterpret_cast<const uint2*>(args.codes)[source] : make_uint2(0, 0);
    }
  }
  cuda::let_next_kernel_start();
}

}  // namespace

void launch_pack_weights(const CudaContext& context, const PackWeights& args,
                         const PackedShape& shape) {
  const int64_t threads = args.groups * round_up(args.n, kTileRows) * shape.columns;
  const int64_t wanted = (threads + kThreads - 1) / kThreads;
  const int64_t fill = int64_t{context.multiprocessors} * 16;
  cuda::launch(context, "packing native FP4 weights", pack_weights_kernel,
               static_cast<int>(wanted < fill ? wanted : fill), kThreads, 0, args, shape, threads);
}

}  // namespace quads::kernels::native_fp4
