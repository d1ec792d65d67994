// Checks of a dense product, and the choice of its tile.
#include "kernels/cuda/dense_gemm.h"

#include <climits>

#include "base/error.h"
#include "kernels/cuda/dense_launch.h"
#include "kernels/cuda/tensor_map.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kHopper = 90;
constexpr int64_t kMaxRows = INT_MAX / 16;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

DenseArgs args_of(const DenseGemm& gemm) {
  DenseArgs args;
  args.bias = reinterpret_cast<const uint16_t*>(gemm.bias);
  args.residual = gemm.residual;
  args.y = gemm.y;
  args.row_count = gemm.row_count;
  args.rows = static_cast<int>(gemm.rows);
  args.n = static_cast<int>(gemm.n);
  args.stages = static_cast<int>(divide_up(gemm.k, kBoxColumns));
  args.part_stages = static_cast<int>(dense_part(gemm.k) / kBoxColumns);
  args.y_is_bf16 = gemm.y_is_bf16;
  return args;
}

void check_shape(const DenseGemm& gemm) {
  require(gemm.k >= 8 && gemm.k % 8 == 0 && gemm.k <= INT_MAX / 2,
          "dense product: k = {}; it must be a multiple of 8", gemm.k);
  require(gemm.n >= 1 && gemm.n <= INT_MAX / 2, "dense product: n = {}", gemm.n);
  require(gemm.rows >= 0 && gemm.rows <= kMaxRows, "dense product of {} rows; 0..{}", gemm.rows,
          kMaxRows);
  // Blocks are counted in 31 bits: four a tile of 16 x 32 at the smallest.
  require((gemm.rows / 16 + 1) * (gemm.n / 32 + 1) <= INT_MAX / 4,
          "dense product: {} rows are too many for n = {}", gemm.rows, gemm.n);
}

// What choose_tile knows of a tile. Times are in an arbitrary unit, fitted to the measured cells of
// docs/results/cuda_dense_h200.json: of a stage of 64 k, and of a kernel besides.
struct TileCost {
  DenseTile tile;
  int rows, columns;
  int blocks;  // of a tile, each with as large a part of K
  int stage, kernel;
};
constexpr TileCost kManyRows[] = {{DenseTile::kSplit64x64, 64, 64, 4, 19, 100},
                                  {DenseTile::kSplit64x128, 64, 128, 4, 28, 100},
                                  {DenseTile::kSplit128x64, 128, 64, 4, 28, 100},
                                  {DenseTile::kSplit128x128, 128, 128, 4, 39, 100},
                                  {DenseTile::kWgmma128x64, 128, 64, 1, 26, 0},
                                  {DenseTile::kWgmma128x96, 128, 96, 1, 36, 0},
                                  {DenseTile::kWgmma128x128, 128, 128, 1, 46, 0},
                                  {DenseTile::kWgmma128x160, 128, 160, 1, 55, 0},
                                  {DenseTile::kWgmma128x192, 128, 192, 1, 64, 0},
                                  {DenseTile::kWgmma256x128, 256, 128, 1, 45, 0},
                                  {DenseTile::kWgmma256x192, 256, 192, 1, 63, 0}};

}  // namespace

const char* tile_name(DenseTile tile) {
  switch (tile) {
    case DenseTile::kCluster16:
      return "cluster 16";
    case DenseTile::kCluster32:
      return "cluster 32";
    case DenseTile::kCluster64:
      return "cluster 64";
    case DenseTile::kSplit64x64:
      return "split 64x64";
    case DenseTile::kSplit64x128:
      return "split 64x128";
    case DenseTile::kSplit128x64:
      return "split 128x64";
    case DenseTile::kSplit128x128:
      return "split 128x128";
    case DenseTile::kWgmma128x64:
      return "wgmma 128x64";
    case DenseTile::kWgmma128x96:
      return "wgmma 128x96";
    case DenseTile::kWgmma128x128:
      return "wgmma 128x128";
    case DenseTile::kWgmma128x160:
      return "wgmma 128x160";
    case DenseTile::kWgmma128x192:
      return "wgmma 128x192";
    case DenseTile::kWgmma256x128:
      return "wgmma 256x128";
    case DenseTile::kWgmma256x192:
      return "wgmma 256x192";
  }
  return "?";
}

bool tile_fits(const CudaContext& context, DenseTile tile) {
  return tile <= DenseTile::kCluster64 || context.capability == kHopper;
}

DenseTile choose_tile(const CudaContext& context, const DenseGemm& gemm) {
  if (gemm.rows <= 16) return DenseTile::kCluster16;
  if (gemm.rows <= 32) return DenseTile::kCluster32;
  if (context.capability != kHopper) return DenseTile::kCluster64;
  DenseTile best = DenseTile::kWgmma128x192;
  int64_t least = INT64_MAX;
  const int64_t stages = divide_up(gemm.k, kBoxColumns);
  for (const TileCost& cost : kManyRows) {
    // A tile of 256 rows is two blocks of 128.
    const int64_t blocks = divide_up(gemm.rows, cost.rows) * divide_up(cost.rows, 128) *
                           divide_up(gemm.n, cost.columns) * cost.blocks;
    const int64_t time =
        divide_up(blocks, context.multiprocessors) * divide_up(stages, cost.blocks) * cost.stage +
        cost.kernel;
    if (time < least) {
      least = time;
      best = cost.tile;
    }
  }
  return best;
}

void dense_gemm(const CudaContext& context, const DenseGemm& gemm, DenseTile tile) {
  check_shape(gemm);
  require(tile_fits(context, tile), "dense product: tile {} does not fit device sm_{}",
          tile_name(tile), context.capability);
  if (gemm.rows == 0) return;
  const DenseArgs args = args_of(gemm);
  switch (tile) {
    case DenseTile::kCluster16:
      return launch_dense_cluster(context, gemm, args, 16);
    case DenseTile::kCluster32:
      return launch_dense_cluster(context, gemm, args, 32);
    case DenseTile::kCluster64:
      return launch_dense_cluster(context, gemm, args, 64);
    case DenseTile::kSplit64x64:
      return launch_dense_wgmma_split(context, gemm, args, 64, 64);
    case DenseTile::kSplit64x128:
      return launch_dense_wgmma_split(context, gemm, args, 64, 128);
    case DenseTile::kSplit128x64:
      return launch_dense_wgmma_split(context, gemm, args, 128, 64);
    case DenseTile::kSplit128x128:
      return launch_dense_wgmma_split(context, gemm, args, 128, 128);
    case DenseTile::kWgmma128x96:
      return launch_dense_wgmma(context, gemm, args, 128, 96);
    case DenseTile::kWgmma128x64:
      return launch_dense_wgmma(context, gemm, args, 128, 64);
    case DenseTile::kWgmma128x128:
      return launch_dense_wgmma(context, gemm, args, 128, 128);
    case DenseTile::kWgmma128x160:
      return launch_dense_wgmma(context, gemm, args, 128, 160);
    case DenseTile::kWgmma128x192:
      return launch_dense_wgmma(context, gemm, args, 128, 192);
    case DenseTile::kWgmma256x128:
      return launch_dense_wgmma(context, gemm, args, 256, 128);
    case DenseTile::kWgmma256x192:
      return launch_dense_wgmma(context, gemm, args, 256, 192);
  }
}

}  // namespace quads::kernels::cuda
