// The FP8 quantiser of the `fp8` recipe: E4M3 with one scale a 128 x 128 block of a weight, or a 1
// x 128 group of an activation row. value = e4m3 * scale.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "numerics/matrix.h"

namespace quads {

inline constexpr int64_t kFp8Block = 128;

/// The smallest power of two s with 448 s >= amax, at least 2^-100; 1 when amax is 0. Quantised
/// values are then exact in BF16. Fails on a negative or non-finite amax.
float fp8_scale_pow2(float amax);

struct Fp8Matrix {
  int64_t rows = 0;
  int64_t k = 0;
  int64_t block_rows = kFp8Block;  // 128 for weights, 1 for activations
  std::vector<uint8_t> codes;      // [rows, k], E4M3
  std::vector<float> scales;       // [ceil(rows / block_rows), ceil(k / 128)], multiplied
};

/// Quantises x [rows, k] in blocks of block_rows x 128, the last of each direction as short as need
/// be; power-of-two scales, round-to-nearest-even, saturating. Fails on a non-finite value and on
/// one whose rounding does not fit into BF16, naming `tensor`, row and column.
Fp8Matrix quantise_fp8(std::span<const float> x, int64_t rows, int64_t k, int64_t block_rows,
                       std::string_view tensor);

/// Back to FP32 [rows, k], one product a value; any finite scale >= 0 will do, so that other tools'
/// files can be read. Fails on sizes that do not fit the shape, a NaN code, or another scale.
std::vector<float> dequantise_fp8(const Fp8Matrix& matrix, std::string_view tensor);

}  // namespace quads
