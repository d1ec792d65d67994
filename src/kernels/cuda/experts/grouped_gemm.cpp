// Checks of a grouped product, and the choice of its tile.
#include "kernels/cuda/experts/grouped_gemm.h"

#include <climits>

#include "base/error.h"
#include "kernels/cuda/experts/activation_image.h"
#include "kernels/cuda/experts/fragment_codes.h"
#include "kernels/cuda/experts/gemm_launch.h"

namespace quads::kernels::cuda {
namespace {

GemmArgs args_of(const GroupedGemm& gemm) {
  GemmArgs args;
  args.weights = gemm.weights;
  args.global_scales = gemm.global_scales;
  args.expert_offsets = gemm.expert_offsets;
  args.q1 = reinterpret_cast<const uint16_t*>(gemm.q1);
  args.q2 = reinterpret_cast<const uint16_t*>(gemm.q2);
  args.row_scales = gemm.format == WeightFormat::kNvfp4Fp16 ? gemm.row_scales : nullptr;
  args.y = gemm.y;
  args.experts = gemm.experts;
  args.n = static_cast<int>(gemm.n);
  args.stages = stages_of(gemm.k);
  args.residual_stages = gemm.residual_stages;
  args.output = gemm.output;
  args.weight_factor = gemm.format == WeightFormat::kBf16 ? 1.0F : kDecodedWeightFactor;
  return args;
}

void check_shape(const GroupedGemm& gemm) {
  require(gemm.experts >= 1 && gemm.experts <= kMaxExperts, "grouped product: {} experts; 1..{}",
          gemm.experts, kMaxExperts);
  require(gemm.n >= kTileRows && gemm.n % kTileRows == 0 && gemm.n <= INT_MAX,
          "grouped product: n = {}; it must be a multiple of {}", gemm.n, kTileRows);
  require(gemm.k >= 1 && gemm.k <= INT_MAX / 2, "grouped product: k = {}", gemm.k);
  require(gemm.residual_stages >= 0 && gemm.residual_stages <= stages_of(gemm.k),
          "grouped product: {} stages with a second pass of {}", gemm.residual_stages,
          stages_of(gemm.k));
  require(gemm.residual_stages == 0 || gemm.format == WeightFormat::kNvfp4,
          "grouped product: only NVFP4 weights are compensated");
  require(
      gemm.format != WeightFormat::kNvfp4Fp16 || gemm.row_scales != nullptr || gemm.rows_bound == 0,
      "grouped product: FP16 images without the scales of their rows");
  // Rows are counted in 32 bits; so are tiles, of 8 rows of activations x 64 of n at the smallest.
  require(gemm.rows_bound >= 0 && gemm.rows_bound <= INT_MAX / 16 &&
              (gemm.rows_bound / 8 + gemm.experts) * (gemm.n / kTileRows) <= INT_MAX,
          "grouped product: {} rows are too many for n = {}", gemm.rows_bound, gemm.n);
}

constexpr int kHopper = 90;

WeightFormat tile_format(GemmTile tile) {
  switch (tile) {
    case GemmTile::kMma256x32Fp8:
    case GemmTile::kWgmma256x96Fp8:
    case GemmTile::kWgmma128x96Fp8:
      return WeightFormat::kFp8;
    case GemmTile::kMma128x32Bf16:
    case GemmTile::kWgmma128x96Bf16:
      return WeightFormat::kBf16;
    default:
      return WeightFormat::kNvfp4;
  }
}

}  // namespace

const char* tile_name(GemmTile tile) {
  switch (tile) {
    case GemmTile::kMma64x8:
      return "mma 64x8";
    case GemmTile::kMma256x32:
      return "mma 256x32";
    case GemmTile::kWgmma512x48:
      return "wgmma 512x48";
    case GemmTile::kWgmma256x96:
      return "wgmma 256x96";
    case GemmTile::kWgmma128x192:
      return "wgmma 128x192";
    case GemmTile::kMma256x32Fp8:
      return "mma 256x32, FP8";
    case GemmTile::kWgmma256x96Fp8:
      return "wgmma 256x96, FP8";
    case GemmTile::kWgmma128x96Fp8:
      return "wgmma 128x96, FP8";
    case GemmTile::kMma128x32Bf16:
      return "mma 128x32, BF16";
    case GemmTile::kWgmma128x96Bf16:
      return "wgmma 128x96, BF16";
  }
  return "?";
}

bool tile_fits(const CudaContext& context, const GroupedGemm& gemm, GemmTile tile) {
  const bool fp16 = gemm.format == WeightFormat::kNvfp4Fp16;
  if (tile_format(tile) != (fp16 ? WeightFormat::kNvfp4 : gemm.format)) return false;
  switch (tile) {
    case GemmTile::kMma64x8: {
      // A block keeps a list of the experts that it meets.
      const int64_t segments = gemm.rows_bound / 8 + gemm.experts;
      return shared_bytes_mma_64x8(args_of(gemm)) <= context.shared_bytes &&
             segments / context.multiprocessors + 3 <= kMaxSegments;
    }
    case GemmTile::kMma256x32:
      return shared_bytes_mma_256x32() <= context.shared_bytes;
    case GemmTile::kMma256x32Fp8:
      return shared_bytes_mma_256x32_fp8() <= context.shared_bytes;
    case GemmTile::kMma128x32Bf16:
      return shared_bytes_mma_128x32_bf16() <= context.shared_bytes;
    case GemmTile::kWgmma512x48:
    case GemmTile::kWgmma256x96:
    case GemmTile::kWgmma256x96Fp8:
    case GemmTile::kWgmma128x96Fp8:
    case GemmTile::kWgmma128x96Bf16:
      return context.capability == kHopper;
    case GemmTile::kWgmma128x192:
      return context.capability == kHopper && gemm.residual_stages > 0;
  }
  return false;
}

// The bounds lie between the measured points of docs/results/gemm_30b_h200.json (0.5, 4, 16, 64
// and 256 rows an expert).
GemmTile choose_tile(const CudaContext& context, const GroupedGemm& gemm) {
  const bool compensated = gemm.residual_stages > 0;
  const bool hopper = context.capability == kHopper;
  const auto at_most = [&](int64_t rows) { return gemm.rows_bound <= rows * gemm.experts; };
  switch (gemm.format) {
    case WeightFormat::kFp8:
      if (!hopper) return GemmTile::kMma256x32Fp8;
      return at_most(32) ? GemmTile::kWgmma128x96Fp8 : GemmTile::kWgmma256x96Fp8;
    case WeightFormat::kBf16:
      return hopper ? GemmTile::kWgmma128x96Bf16 : GemmTile::kMma128x32Bf16;
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Fp16:
      break;
  }
  if (at_most(4) && tile_fits(context, gemm, GemmTile::kMma64x8)) return GemmTile::kMma64x8;
  if (!hopper) return GemmTile::kMma256x32;
  // With compensation a tile of 48 has room for 24 rows: where some experts have more, their
  // weights would be read once more and the last round of units have little to do.
  if (at_most(compensated ? 12 : 32)) return GemmTile::kWgmma512x48;
  if (compensated && !at_most(40)) return GemmTile::kWgmma128x192;
  return GemmTile::kWgmma256x96;
}

void grouped_gemm(const CudaContext& context, const GroupedGemm& gemm, GemmTile tile) {
  check_shape(gemm);
  require(tile_fits(context, gemm, tile),
          "grouped product [{} experts, n {}, k {}]: tile {} does not fit device sm_{}",
          gemm.experts, gemm.n, gemm.k, tile_name(tile), context.capability);
  if (gemm.rows_bound == 0) return;
  const GemmArgs args = args_of(gemm);
  const bool fp16 = args.row_scales != nullptr;
  switch (tile) {
    case GemmTile::kMma64x8:
      return launch_mma_64x8(context, args);
    case GemmTile::kMma256x32:
      return fp16 ? launch_mma_256x32_fp16(context, args) : launch_mma_256x32(context, args);
    case GemmTile::kWgmma512x48:
      return fp16 ? launch_wgmma_512x48_fp16(context, args) : launch_wgmma_512x48(context, args);
    case GemmTile::kWgmma256x96:
      return fp16 ? launch_wgmma_256x96_fp16(context, args) : launch_wgmma_256x96(context, args);
    case GemmTile::kWgmma128x192:
      return launch_wgmma_128x192(context, args);
    case GemmTile::kMma256x32Fp8:
      return launch_mma_256x32_fp8(context, args);
    case GemmTile::kWgmma256x96Fp8:
      return launch_wgmma_256x96_fp8(context, args);
    case GemmTile::kWgmma128x96Fp8:
      return launch_wgmma_128x96_fp8(context, args);
    case GemmTile::kMma128x32Bf16:
      return launch_mma_128x32_bf16(context, args);
    case GemmTile::kWgmma128x96Bf16:
      return launch_wgmma_128x96_bf16(context, args);
  }
}

}  // namespace quads::kernels::cuda
