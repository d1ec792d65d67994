// The instance of tile_gemm.cuh for tiles of 512x32 by wgmma (sm_90a only).
#include "kernels/cuda/tile_gemm.cuh"

namespace quads::kernels::cuda {

void launch_wgmma_512x32(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<TileConfig<Nvfp4Decoder, true, 4, 2, 32, 5, 4>>(context, args, "wgmma 512x32");
}

}  // namespace quads::kernels::cuda
