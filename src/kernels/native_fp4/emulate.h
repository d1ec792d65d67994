// The product of native FP4 operands on the CPU, from exactly the buffers that a chip with FP4
// units would be given: it holds layout and arithmetic against the rest of the program where no
// such chip is at hand.
#pragma once

#include <cstdint>
#include <span>

namespace quads::kernels::native_fp4 {

/// Operands as layout.h has them.
struct Product {
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;                           // k', a multiple of 32
  std::span<const int32_t> offsets;        // [groups]
  std::span<const uint8_t> codes;          // [rows, k / 2]
  std::span<const uint8_t> scales;         // at least the padded groups' rows x scale_columns(k)
  std::span<const uint8_t> weight_codes;   // [groups, n, k / 2]
  std::span<const uint8_t> weight_scales;  // [groups, roundup(n, 128) * scale_columns(k)]
  std::span<const float> global_scales;    // [groups], the weights'
};

/// sums [rows, n] = global scale * sum over the blocks b of 16, rising, of dot_b * (s_b * t_b),
/// with s_b and t_b the block's scales and dot_b the sum of its products of two E2M1. Each term is
/// exact in FP32 (dot_b is an integer number of quarters below 2^12, two E4M3 give 8 significand
/// bits), so a sum has one rounding a block, and one of the product with the global scale (none
/// where that is a power of two). A chip adds in an order of its own, which its vendor does not
/// say. Padded columns of scales take part, as on a chip: a NaN there makes the sums NaN. Error on
/// sizes that do not fit.
void emulate(const Product& product, std::span<float> sums);

/// |emulate - exact| over the sum of the terms' magnitudes, times the global scale, at most: a
/// rounding for each block but the first, and the product's.
double emulation_bound(int64_t k);

}  // namespace quads::kernels::native_fp4
