// Checks and scans that every quantiser makes on its input.
#include "numerics/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "numerics/bf16.h"

namespace quads {

std::optional<NonFinite> find_non_finite(std::span<const float> x, int64_t rows, int64_t k) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const float value = x[row * k + column];
      if (!std::isfinite(value)) return NonFinite{row, column, value};
    }
  }
  return std::nullopt;
}

float checked_amax(std::span<const float> x, int64_t rows, int64_t k, std::string_view tensor,
                   int64_t first_row) {
  if (const auto bad = find_non_finite(x, rows, k)) {
    fail("{}: row {}, column {} is {}; only finite values can be quantised", tensor,
         first_row + bad->row, bad->column, bad->value);
  }
  float amax = 0.0F;
  for (const float value : x) amax = std::max(amax, std::fabs(value));
  return amax;
}

void require_shape(std::span<const float> x, int64_t rows, int64_t k, std::string_view tensor) {
  require(rows >= 0 && k >= 0 && (k == 0 || rows <= INT64_MAX / k) &&
              static_cast<int64_t>(x.size()) == rows * k,
          "{}: {} elements given for a shape of [{}, {}]", tensor, x.size(), rows, k);
}

void require_fits_bf16(float dequantised, float x, std::string_view tensor, int64_t row,
                       int64_t column) {
  require(std::isfinite(to_float(to_bf16(dequantised))),
          "{}: row {}, column {} is {}, which rounds to a value beyond BF16's range", tensor, row,
          column, x);
}

float smallest_power_of_two_scale(float amax, float max_value) {
  require(std::isfinite(amax) && amax >= 0.0F, "a scale needs a finite amax >= 0, not {}", amax);
  if (amax == 0.0F) return 1.0F;
  const uint32_t a = std::bit_cast<uint32_t>(amax);
  const uint32_t m = std::bit_cast<uint32_t>(max_value);
  const int round_up = (a & 0x7FFFFFU) > (m & 0x7FFFFFU) ? 1 : 0;
  const int exponent = static_cast<int>(a >> 23) - static_cast<int>(m >> 23) + round_up;
  return std::bit_cast<float>(static_cast<uint32_t>(std::max(exponent, -100) + 127) << 23);
}

bool is_power_of_two(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = bits >> 23;  // with the sign above it
  return (bits & 0x7FFFFFU) == 0 && exponent >= 1 && exponent <= 254;
}

}  // namespace quads
