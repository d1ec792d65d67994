// The FP8 quantiser.
#include "numerics/fp8.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "numerics/e4m3.h"

namespace quads {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

float fp8_scale_pow2(float amax) { return smallest_power_of_two_scale(amax, kE4m3Max); }

Fp8Matrix quantise_fp8(std::span<const float> x, int64_t rows, int64_t k, int64_t block_rows,
                       std::string_view tensor) {
  require_shape(x, rows, k, tensor);
  require(block_rows >= 1, "{}: blocks of {} rows; at least 1 is needed", tensor, block_rows);
  checked_amax(x, rows, k, tensor);
  Fp8Matrix matrix{rows, k, block_rows, std::vector<uint8_t>(x.size()), {}};
  for (int64_t row0 = 0; row0 < rows; row0 += block_rows) {
    for (int64_t column0 = 0; column0 < k; column0 += kFp8Block) {
      const int64_t row1 = std::min(rows, row0 + block_rows);
      const int64_t column1 = std::min(k, column0 + kFp8Block);
      float amax = 0.0F;
      for (int64_t row = row0; row < row1; ++row) {
        for (int64_t column = column0; column < column1; ++column) {
          amax = std::max(amax, std::fabs(x[row * k + column]));
        }
      }
      const float scale = fp8_scale_pow2(amax);
      matrix.scales.push_back(scale);
      for (int64_t row = row0; row < row1; ++row) {
        for (int64_t column = column0; column < column1; ++column) {
          const float value = x[row * k + column];
          const uint8_t code = e4m3_encode(value / scale);  // exact: a power of two
          require_fits_bf16(e4m3_decode(code) * scale, value, tensor, row, column);
          matrix.codes[row * k + column] = code;
        }
      }
    }
  }
  return matrix;
}

std::vector<float> dequantise_fp8(const Fp8Matrix& matrix, std::string_view tensor) {
  const int64_t rows = matrix.rows;
  const int64_t k = matrix.k;
  require(rows >= 0 && k >= 0 && matrix.block_rows >= 1 && (k == 0 || rows <= INT64_MAX / k) &&
              static_cast<int64_t>(matrix.codes.size()) == rows * k &&
              static_cast<int64_t>(matrix.scales.size()) ==
                  ceil_div(rows, matrix.block_rows) * ceil_div(k, kFp8Block),
          "{}: {} codes and {} scales do not make [{}, {}] in blocks of {} x 128", tensor,
          matrix.codes.size(), matrix.scales.size(), rows, k, matrix.block_rows);
  const int64_t scale_columns = ceil_div(k, kFp8Block);
  for (size_t i = 0; i < matrix.scales.size(); ++i) {
    require(std::isfinite(matrix.scales[i]) && matrix.scales[i] >= 0.0F,
            "{}: scale [{}, {}] is {}; it must be finite and not negative", tensor,
            i / scale_columns, i % scale_columns, matrix.scales[i]);
  }
  std::vector<float> values(matrix.codes.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const uint8_t code = matrix.codes[row * k + column];
      require(!e4m3_is_nan(code), "{}: row {}, column {} is an E4M3 NaN (code {:02X})", tensor, row,
              column, code);
      const float scale =
          matrix.scales[row / matrix.block_rows * scale_columns + column / kFp8Block];
      values[row * k + column] = e4m3_decode(code) * scale;
    }
  }
  return values;
}

}  // namespace quads
