// The instances of tile_gemm.cuh for NVFP4 weights beside FP16 images by wgmma (sm_90a only).
#include "kernels/cuda/experts/tile_gemm.cuh"

namespace quads::kernels::cuda {

void launch_wgmma_512x48_fp16(const CudaContext& context, const GemmArgs& args) {
  using Config = TileConfig<Nvfp4Fp16Decoder, true, 4, 2, 48, 5, 3, 112, 32>;
  launch_tile_gemm<Config, Passes::kOne>(context, args, "wgmma 512x48, FP16");
}

void launch_wgmma_256x96_fp16(const CudaContext& context, const GemmArgs& args) {
  using Config = TileConfig<Nvfp4Fp16Decoder, true, 4, 1, 96, 6, 4, 112, 32>;
  launch_tile_gemm<Config, Passes::kOne>(context, args, "wgmma 256x96, FP16");
}

}  // namespace quads::kernels::cuda
