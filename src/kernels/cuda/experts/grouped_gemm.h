// The product of every expert's weight (NVFP4, FP8 or BF16) with the rows that were routed to it;
// for NVFP4 with residual compensation: y = alpha (W q1 + W q2), or in one pass y = alpha g W q
// with q = (q1 + q2) / g (WeightFormat::kNvfp4Fp16).
//
// Every product of two dequantised operands is exact; sums are FP32 in the tensor core's order over
// k16 steps in rising order, W q1 and W q2 in two accumulators, one addition at the end, then one
// multiplication by the expert's global scale. The order is the same for every tile shape, so a
// row's result depends on that row and on its expert's weight alone: not on the number of rows,
// their order, the neighbours or the tile (which mma.sync and wgmma were measured to share). Nor on
// the format: weights of equal value give equal bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/cuda/experts/weight_format.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

inline constexpr int kMaxExperts = 512;

/// What becomes of the sums.
enum class GemmOutput : uint8_t {
  kFp32,      // y [rows, n]
  kGatesUps,  // of paired rows of W (paired_rows.h): FP32 y [rows, n], gates, then ups
  kSilu,      // of paired rows: BF16 y [rows, n / 2], silu(gate) * up as the quantiser makes it
};

/// Device pointers, 16-byte aligned.
struct GroupedGemm {
  int experts = 0;  // 1..kMaxExperts
  int64_t n = 0;    // a multiple of 64
  int64_t k = 0;    // any; images and weights are padded to stages of 128
  WeightFormat format = WeightFormat::kNvfp4;
  const uint8_t* weights = nullptr;         // [experts][fragment_bytes(n, k, format)]
  const float* global_scales = nullptr;     // [experts]; null: 1
  const int32_t* expert_offsets = nullptr;  // [experts + 1]: the sorted rows of each expert
  const Bf16* q1 = nullptr;                 // image over stages_of(k) stages (activation_image.h)
  const Bf16* q2 = nullptr;                 // image over residual_stages stages
  /// [padded rows] g of every row; kNvfp4Fp16 only, whose q1 are the bits of FP16.
  const float* row_scales = nullptr;
  int residual_stages = 0;  // leading stages of K with a second pass; NVFP4 only
  void* y = nullptr;        // rows sorted by expert
  GemmOutput output = GemmOutput::kFp32;
  /// At least expert_offsets[experts]; chooses the tile and sizes nothing else.
  int64_t rows_bound = 0;
};

/// The kernels, by their tile: rows of N x rows of activations (q1 and q2 counted).
enum class GemmTile : uint8_t {
  kMma64x8,      // activations of all of K in shared memory; a token or two an expert
  kMma256x32,    // any number; the fallback of chips without wgmma
  kWgmma512x48,  // Hopper
  kWgmma256x96,
  kWgmma128x192,  // with compensation only
  kMma256x32Fp8,
  kWgmma256x96Fp8,
  kWgmma128x96Fp8,
  kMma128x32Bf16,
  kWgmma128x96Bf16,
};
inline constexpr GemmTile kGemmTiles[] = {GemmTile::kMma64x8,        GemmTile::kMma256x32,
                                          GemmTile::kWgmma512x48,    GemmTile::kWgmma256x96,
                                          GemmTile::kWgmma128x192,   GemmTile::kMma256x32Fp8,
                                          GemmTile::kWgmma256x96Fp8, GemmTile::kWgmma128x96Fp8,
                                          GemmTile::kMma128x32Bf16,  GemmTile::kWgmma128x96Bf16};
const char* tile_name(GemmTile tile);

/// Whether the tile is for the format and allowed by the device and the shape.
bool tile_fits(const CudaContext& context, const GroupedGemm& gemm, GemmTile tile);

/// The tile that measured fastest for so many rows an expert.
GemmTile choose_tile(const CudaContext& context, const GroupedGemm& gemm);

/// Launches one kernel. Error on sizes out of range and on a tile that does not fit.
void grouped_gemm(const CudaContext& context, const GroupedGemm& gemm, GemmTile tile);
inline void grouped_gemm(const CudaContext& context, const GroupedGemm& gemm) {
  grouped_gemm(context, gemm, choose_tile(context, gemm));
}

}  // namespace quads::kernels::cuda
