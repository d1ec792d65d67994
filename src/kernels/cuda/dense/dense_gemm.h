// y = x W^T for weights that are not quantised, as the trainer holds them: the projections of
// attention, the router and the language-model head.
//
// A row's bits depend on that row and the weight alone. Products are exact; K is cut into at most
// four parts (dense_part), by its length only. A part is one chain of FP32 sums in the tensor
// core's order over k16 steps in rising order, from 0; the parts are added in rising order. So the
// number of rows, their order and the tile change nothing (mma.sync and wgmma were measured to
// share the order of a step).
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// Device pointers, 16-byte aligned. y = residual + (sum + bias), each addition rounded to FP32,
/// that of the residual with subnormals as zeros, then rounded to BF16 if y is.
struct DenseGemm {
  const Bf16* x = nullptr;             // [rows, k]
  const Bf16* weight = nullptr;        // [n, k]
  const Bf16* bias = nullptr;          // [n]; null: none
  const float* residual = nullptr;     // [rows, n], may be y; null: none
  void* y = nullptr;                   // [rows, n]
  bool y_is_bf16 = false;              // FP32 else
  int64_t rows = 0;                    // a bound, if row_count says how many there are
  const int32_t* row_count = nullptr;  // on the device, at most `rows`; null: all. Others of y stay
  int64_t n = 0;                       // at least 1
  int64_t k = 0;                       // a multiple of 8
};

/// The length of a part of K (the last may be shorter): a fourth, rounded up to 64.
constexpr int64_t dense_part(int64_t k) { return (k + 255) / 256 * 64; }

/// The kernels, by their tile: rows of x x rows of the weight.
enum class DenseTile : uint8_t {
  kCluster16,  // few rows: a part of K a block, four blocks a tile, which add their sums
  kCluster32,
  kCluster64,   // any number of rows, as the fallback of chips without wgmma
  kSplit64x64,  // Hopper: the same by wgmma, for more rows
  kSplit128x64,
  kSplit128x96,
  kWgmma128x64,  // Hopper, many rows
  kWgmma128x96,
  kWgmma128x128,
  kWgmma128x160,
  kWgmma128x192,
  kWgmma256x128,  // by pairs of blocks that share the weight's rows
  kWgmma256x192,
};
inline constexpr DenseTile kDenseTiles[] = {
    DenseTile::kCluster16,    DenseTile::kCluster32,    DenseTile::kCluster64,
    DenseTile::kSplit64x64,   DenseTile::kSplit128x64,  DenseTile::kSplit128x96,
    DenseTile::kWgmma128x64,  DenseTile::kWgmma128x96,  DenseTile::kWgmma128x128,
    DenseTile::kWgmma128x160, DenseTile::kWgmma128x192, DenseTile::kWgmma256x128,
    DenseTile::kWgmma256x192};
const char* tile_name(DenseTile tile);

/// Whether the tile is for the device.
bool tile_fits(const CudaContext& context, DenseTile tile);

/// The tile that measured fastest for such a shape.
DenseTile choose_tile(const CudaContext& context, const DenseGemm& gemm);

/// Launches one kernel. Error on sizes out of range and on a tile that does not fit the device.
/// Under overlap the weight and the bias must not be written by the previous kernel.
void dense_gemm(const CudaContext& context, const DenseGemm& gemm, DenseTile tile);
inline void dense_gemm(const CudaContext& context, const DenseGemm& gemm) {
  dense_gemm(context, gemm, choose_tile(context, gemm));
}

}  // namespace quads::kernels::cuda
