// Weights and activations into the layout of native FP4 products (layout.h), on the device. The
// bytes are those of pack.h. The kernels run on any chip.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::native_fp4 {

using cuda::CudaContext;

/// Device pointers, 8-byte aligned.
struct PackWeights {
  int64_t groups = 0;
  int64_t n = 0;
  int64_t k = 0;                          // a multiple of 16
  const uint8_t* codes = nullptr;         // [groups, n, k / 2]
  const uint8_t* block_scales = nullptr;  // [groups, n, k / 16]
  const int32_t* selected = nullptr;      // [selected_blocks] the compensated blocks, rising
  int64_t selected_blocks = 0;
  uint8_t* packed_codes = nullptr;   // [groups, n, k' / 2]
  uint8_t* packed_scales = nullptr;  // [groups, roundup(n, 128) * columns]
};

/// Launches one kernel, which writes every byte. Error on sizes out of range.
void pack_weights(const CudaContext& context, const PackWeights& args);

/// Device pointers, 16-byte aligned.
struct PackRows {
  const Bf16* x = nullptr;  // [rows, k]
  int64_t rows = 0;
  int64_t k = 0;  // a multiple of 16
  /// [groups] the groups' ends: rising, the last is `rows`.
  const int32_t* offsets = nullptr;
  int groups = 0;
  const int32_t* place = nullptr;  // [k / 16] of AugmentedK; null: no block is compensated
  int64_t selected_blocks = 0;
  const uint8_t* channel_mask = nullptr;  // [k] not 0 where compensated; null: whole blocks
  uint8_t* codes = nullptr;               // [rows, k' / 2]
  uint8_t* scales = nullptr;              // [scale_rows_bound(rows, groups), columns]
  float* row_scales = nullptr;            // [rows]
  /// Lowered (atomic minimum) to the first row that holds a NaN or an Inf, or whose rounding leaves
  /// BF16's range; what is written of such a row is undefined. The caller sets it to INT32_MAX.
  int32_t* first_bad_row = nullptr;
};

/// Clears codes and scales and launches one kernel. Error on sizes out of range.
void pack_rows(const CudaContext& context, const PackRows& args);

}  // namespace quads::kernels::native_fp4
