// The instances of tile_gemm.cuh for NVFP4 weights in tiles of 256x32 by mma.sync, for any chip
// from sm_90 on. Their rings are short enough for the 99 KiB of shared memory of sm_120.
#include "kernels/cuda/experts/tile_gemm.cuh"

namespace quads::kernels::cuda {
namespace {

using Config = TileConfig<Nvfp4Decoder, false, 4, 1, 32, 3, 3>;
using Fp16Config = TileConfig<Nvfp4Fp16Decoder, false, 4, 1, 32, 3, 3>;

}  // namespace

int shared_bytes_mma_256x32() { return tile_shared_bytes<Config>(); }

void launch_mma_256x32(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<Config>(context, args, "mma 256x32");
}

void launch_mma_256x32_fp16(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<Fp16Config, Passes::kOne>(context, args, "mma 256x32, FP16");
}

}  // namespace quads::kernels::cuda
