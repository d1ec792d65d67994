// The instances of tile_gemm.cuh for FP8 and BF16 weights by wgmma (sm_90a only).
#include "kernels/cuda/experts/tile_gemm.cuh"

namespace quads::kernels::cuda {

void launch_wgmma_256x96_fp8(const CudaContext& context, const GemmArgs& args) {
  using Config = TileConfig<Fp8Decoder, true, 4, 1, 96, 4, 3, 112, 32>;
  launch_tile_gemm<Config, Passes::kOne>(context, args, "wgmma 256x96, FP8");
}

void launch_wgmma_128x96_fp8(const CudaContext& context, const GemmArgs& args) {
  using Config = TileConfig<Fp8Decoder, true, 2, 1, 96, 7, 3>;
  launch_tile_gemm<Config, Passes::kOne>(context, args, "wgmma 128x96, FP8");
}

void launch_wgmma_128x96_bf16(const CudaContext& context, const GemmArgs& args) {
  using Config = TileConfig<Bf16Decoder, true, 2, 1, 96, 4, 3>;
  launch_tile_gemm<Config, Passes::kOne>(context, args, "wgmma 128x96, BF16");
}

}  // namespace quads::kernels::cuda
