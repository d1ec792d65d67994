// The instances of tile_gemm.cuh for FP8 and BF16 weights by mma.sync, for any chip from sm_90 on.
#include "kernels/cuda/experts/tile_gemm.cuh"

namespace quads::kernels::cuda {
namespace {

using Fp8Config = TileConfig<Fp8Decoder, false, 4, 1, 32, 2, 2>;
using Bf16Config = TileConfig<Bf16Decoder, false, 2, 1, 32, 2, 2>;

}  // namespace

int shared_bytes_mma_256x32_fp8() { return tile_shared_bytes<Fp8Config>(); }
int shared_bytes_mma_128x32_bf16() { return tile_shared_bytes<Bf16Config>(); }

void launch_mma_256x32_fp8(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<Fp8Config, Passes::kOne>(context, args, "mma 256x32, FP8");
}

void launch_mma_128x32_bf16(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<Bf16Config, Passes::kOne>(context, args, "mma 128x32, BF16");
}

}  // namespace quads::kernels::cuda
