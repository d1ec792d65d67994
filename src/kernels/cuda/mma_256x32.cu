// The instance of tile_gemm.cuh for tiles of 256x32 by mma.sync, for any chip from sm_90 on. Its
// rings are short enough for the 99 KiB of shared memory of sm_120.
#include "kernels/cuda/tile_gemm.cuh"

namespace quads::kernels::cuda {
namespace {

using Config = TileConfig<Nvfp4Decoder, false, 4, 1, 32, 3, 3>;

}  // namespace

int shared_bytes_mma_256x32() {
  return Config::kSharedBytes + static_cast<int>(sizeof(ExpertTable) + sizeof(UnitQueue));
}

void launch_mma_256x32(const CudaContext& context, const GemmArgs& args) {
  launch_tile_gemm<Config>(context, args, "mma 256x32");
}

}  // namespace quads::kernels::cuda
