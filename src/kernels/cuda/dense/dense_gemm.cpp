// Checks of a dense product, and the choice of its tile.
#include "kernels/cuda/dense/dense_gemm.h"

#include <algorithm>
#include <climits>
#include <iterator>

#include "base/error.h"
#include "kernels/cuda/dense/dense_launch.h"
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

// What choose_tile knows of a tile.
struct TileShape {
  DenseTile tile;
  int rows, columns;
  int pair;      // blocks of 128 rows that share the weight's
  int parts;     // blocks that have a part of K each
  int resident;  // blocks that a multiprocessor can hold
};
constexpr TileShape kManyRows[] = {
    {DenseTile::kSplit64x64, 64, 64, 1, 4, 2},     {DenseTile::kSplit128x64, 128, 64, 1, 4, 2},
    {DenseTile::kSplit128x96, 128, 96, 1, 4, 1},   {DenseTile::kWgmma128x64, 128, 64, 1, 1, 1},
    {DenseTile::kWgmma128x96, 128, 96, 1, 1, 1},   {DenseTile::kWgmma128x128, 128, 128, 1, 1, 1},
    {DenseTile::kWgmma128x160, 128, 160, 1, 1, 1}, {DenseTile::kWgmma128x192, 128, 192, 1, 1, 1},
    {DenseTile::kWgmma256x128, 256, 128, 2, 1, 1}, {DenseTile::kWgmma256x192, 256, 192, 2, 1, 1}};
static_assert(std::size(kManyRows) + 3 == std::size(kDenseTiles));  // and the clusters

// Nanoseconds, fitted to the measured cells of docs/results/cuda_dense_h200.json: with launches
// overlapped and from 64 rows on it finds the best tile or one within 3 %, for a router within a
// microsecond. A stage of 64 k takes the
// time of its products, or what the L2 cache needs to feed all blocks.
int64_t tile_time(const TileShape& shape, const DenseGemm& gemm, int64_t multiprocessors) {
  const int64_t stages = divide_up(gemm.k, kBoxColumns);
  const int64_t row_tiles = divide_up(gemm.rows, shape.rows);
  const int64_t tiles = row_tiles * divide_up(gemm.n, shape.columns);
  if (shape.parts > 1) {
    // Clusters with multiprocessors of their own do not fill the chip; never measured best beyond.
    const int64_t room = shape.resident == 1 ? multiprocessors * 9 / 10 : multiprocessors;
    const int64_t blocks = tiles * shape.parts;
    if (blocks > room) return INT64_MAX;
    // Those that can share multiprocessors do, though others may be free.
    const int64_t sharing = std::min<int64_t>(shape.resident, divide_up(blocks * 2, room));
    return 4200 + divide_up(stages, shape.parts) * shape.rows * shape.columns * sharing / 31;
  }
  const int64_t blocks = tiles * shape.pair;
  const int64_t height = divide_up(gemm.rows, row_tiles * shape.pair);
  const int64_t shared = shape.pair == 1 ? shape.columns : shape.columns * 4 / 5;
  const int64_t bytes = (height + shared) * kBoxColumns * 2;
  // One warpgroup has half of the products, and nobody to fill its pauses.
  const int64_t multiply = height > 64 ? shape.columns * 275 / 100 : 67 + shape.columns * 109 / 100;
  const int64_t full = std::max(multiply * 83 / 100, multiprocessors * bytes / 11050);
  const int64_t rest = blocks % multiprocessors;
  const int64_t last = rest == 0 ? 0 : std::max(multiply, rest * bytes / 16470);
  return 3260 + stages * (blocks / multiprocessors * full + last) +
         divide_up(blocks, multiprocessors) * shape.columns * 9;
}

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
    case DenseTile::kSplit128x64:
      return "split 128x64";
    case DenseTile::kSplit128x96:
      return "split 128x96";
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
  const bool hopper = context.capability == kHopper;
  // Tiles by wgmma, where even narrow ones take half of the chip.
  const bool wide = divide_up(gemm.n, 64) * 2 > context.multiprocessors;
  if (gemm.rows <= 32 && !(hopper && wide)) return DenseTile::kCluster32;
  if (!hopper) return DenseTile::kCluster64;
  DenseTile best = DenseTile::kWgmma128x192;
  int64_t least = INT64_MAX;
  for (const TileShape& shape : kManyRows) {
    const int64_t time = tile_time(shape, gemm, context.multiprocessors);
    if (time < least) {
      least = time;
      best = shape.tile;
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
    default:
      break;
  }
  const TileShape& shape = *std::ranges::find(kManyRows, tile, &TileShape::tile);
  const auto launch = shape.parts > 1 ? launch_dense_wgmma_split : launch_dense_wgmma;
  launch(context, gemm, args, shape.rows, shape.columns);
}

}  // namespace quads::kernels::cuda
