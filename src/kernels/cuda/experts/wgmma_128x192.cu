// The instance of tile_gemm.cuh for tiles of 128x192 by wgmma (sm_90a only).
#include "kernels/cuda/experts/tile_gemm.cuh"

namespace quads::kernels::cuda {

void launch_wgmma_128x192(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<TileConfig<Nvfp4Decoder, true, 2, 1, 192, 6, 3>, Passes::kTwo>(context, args,
                                                                                  "wgmma 128x192");
}

}  // namespace quads::kernels::cuda
