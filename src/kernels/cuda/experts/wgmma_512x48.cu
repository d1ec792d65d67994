// The instance of tile_gemm.cuh for tiles of 512x48 by wgmma (sm_90a only).
#include "kernels/cuda/experts/tile_gemm.cuh"

namespace quads::kernels::cuda {

void launch_wgmma_512x48(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<TileConfig<Nvfp4Decoder, true, 4, 2, 48, 5, 3, 112, 32>>(context, args,
                                                                            "wgmma 512x48");
}

}  // namespace quads::kernels::cuda
