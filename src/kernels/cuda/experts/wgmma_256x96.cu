// The instance of tile_gemm.cuh for tiles of 256x96 by wgmma (sm_90a only).
#include "kernels/cuda/experts/tile_gemm.cuh"

namespace quads::kernels::cuda {

void launch_wgmma_256x96(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<TileConfig<Nvfp4Decoder, true, 4, 1, 96, 6, 4, 112, 32>>(context, args,
                                                                            "wgmma 256x96");
}

}  // namespace quads::kernels::cuda
