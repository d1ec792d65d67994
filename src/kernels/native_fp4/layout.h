// Where the operands of block-scaled FP4 products lie, as chips with FP4 units (sm_100, sm_120)
// read them through PyTorch's `_scaled_mm` and `_scaled_grouped_mm`. Plain C++, shared by host and
// kernels.
//
// Codes: [rows, k'] E2M1 row-major, two a byte, the even k in the low nibble (float4_e2m1fn_x2).
// Block scales: E4M3, one for 16 values along k', rows padded to 128 and columns to 4 with zeros,
// cut into tiles of 128 x 4 that lie one after another, row of tiles by row of tiles; a tile is
// swizzled 32_4_4: byte (r % 32) * 16 + (r / 32) * 4 + c (cuBLAS documentation, "1D block scaling
// factors layout").
// Groups (experts): the rows of one follow those of another, `offsets` [groups] int32 says where
// each ends; the scales of each group are padded to 128 rows by themselves, so a group without rows
// has none. Weights are [groups, n, k'], their scales [groups, roundup(n, 128) * columns].
//
// What PyTorch 2.11 demands (ATen/native/cuda/GroupedBlas.cpp and ScaledBlas.cpp, MSLK's
// grouped_common.cuh; torch/_meta_registrations.py): k' a multiple of 32 and n of 16, both matrices
// K-major and dense; two scales an operand, recipes {BlockWise1x16, TensorWise}, swizzle 32_4_4;
// FP32 global scales, one value a group; BF16 results.
//
// Residual compensation (numerics/rac.h) is an augmented K, as in ARCQuant (arXiv 2601.07475):
// behind the k channels come the blocks of 16 with a compensated channel, in rising order, holding
// q2 in activations and copies of the same blocks in weights: W q1 + W_sel q2 = [W, W_sel] [q1,
// q2]^T. Then a block of zeros where k' would be an odd number of blocks.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define QUADS_HOST_DEVICE __host__ __device__
#else
#define QUADS_HOST_DEVICE
#endif

namespace quads::kernels::native_fp4 {

inline constexpr int64_t kBlock = 16;      // values that share a scale
inline constexpr int64_t kTileRows = 128;  // of a tile of scales
inline constexpr int64_t kTileColumns = 4;
inline constexpr int64_t kTileBytes = kTileRows * kTileColumns;
inline constexpr int64_t kAlignedK = 32;  // 16 bytes of codes
inline constexpr int64_t kAlignedN = 16;

QUADS_HOST_DEVICE constexpr int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

/// k' of k channels of which `selected` blocks are compensated.
constexpr int64_t augmented_k(int64_t k, int64_t selected) {
  return round_up(k + selected * kBlock, kAlignedK);
}

/// Columns of the scales of k' channels, padding included.
QUADS_HOST_DEVICE constexpr int64_t scale_columns(int64_t k) {
  return round_up((k + kBlock - 1) / kBlock, kTileColumns);
}

/// The byte of the scale of (row, block) in scales of `columns` columns.
QUADS_HOST_DEVICE constexpr int64_t scale_offset(int64_t row, int64_t block, int64_t columns) {
  const int64_t tile = row / kTileRows * (columns / kTileColumns) + block / kTileColumns;
  return tile * kTileBytes + row % 32 * 16 + row % kTileRows / 32 * 4 + block % kTileColumns;
}

/// Rows of scales that any split of `rows` rows into `groups` groups fits into, a multiple of 128.
constexpr int64_t scale_rows_bound(int64_t rows, int64_t groups) {
  const int64_t used = rows < groups ? rows : groups;
  return (rows + (kTileRows - 1) * used) / kTileRows * kTileRows;
}

}  // namespace quads::kernels::native_fp4
