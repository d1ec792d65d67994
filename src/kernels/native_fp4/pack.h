// Weights and activations into the layout of native FP4 products (layout.h): scalar, the reference
// for the kernels of pack_cuda.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/native_fp4/augmented_k.h"

namespace quads::kernels::native_fp4 {

/// The ends of groups of rows, as `_scaled_grouped_mm` takes them. Error unless they rise from at
/// least 0 to `rows`.
void require_offsets(std::span<const int32_t> offsets, int64_t rows);

/// One group's weight: W [n, k] as numerics' quantiser gives it (packed codes [n, k / 2], scales
/// [n, k / 16]) to codes [n, k' / 2] and scales [roundup(n, 128) * columns], every byte of both.
/// A global scale stays what it is.
void pack_weight(std::span<const uint8_t> codes, std::span<const uint8_t> block_scales, int64_t n,
                 const AugmentedK& k, std::span<uint8_t> packed_codes,
                 std::span<uint8_t> packed_scales);

struct PackedRows {
  std::span<uint8_t> codes;   // [rows, k' / 2]
  std::span<uint8_t> scales;  // [scale_rows_bound(rows, groups), columns]
  /// [rows] g of each row, a power of two. No operand of the product has a place for it: it
  /// multiplies the row's results, which is exact, after their rounding to BF16 too.
  std::span<float> row_scales;
};

/// Rows x [rows, k] of BF16 values, sorted by group: q1, then q2 of the compensated blocks
/// (numerics' compensate_row under `mask` [k]; empty: none). Every byte is written. Errors as
/// there, naming `where` and the row, and as require_offsets.
void pack_rows(std::span<const float> x, std::span<const int32_t> offsets, const AugmentedK& k,
               std::span<const uint8_t> mask, const PackedRows& out, std::string_view where);

}  // namespace quads::kernels::native_fp4
