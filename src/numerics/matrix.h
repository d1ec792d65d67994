// Checks and scans that every quantiser makes on its input, a row-major [rows, k] FP32 matrix.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace quads {

/// Global scales never fall below this, so that the smallest quantised value stays normal in BF16.
inline constexpr float kMinScale = 0x1p-100F;

/// Where a NaN or an Inf is. Quantising one would launder it (a maximum drops NaN, casts saturate).
struct NonFinite {
  int64_t row, column;
  float value;
};

/// The first non-finite value of x [rows, k], row-major, if there is one.
std::optional<NonFinite> find_non_finite(std::span<const float> x, int64_t rows, int64_t k);

/// The largest magnitude of x [rows, k], 0 when empty. Fails on the first non-finite value, naming
/// `tensor`, row (counted from `first_row`) and column.
float checked_amax(std::span<const float> x, int64_t rows, int64_t k, std::string_view tensor,
                   int64_t first_row = 0);

/// Fails unless x has rows * k elements and both are >= 0.
void require_shape(std::span<const float> x, int64_t rows, int64_t k, std::string_view tensor);

/// Fails when a dequantised value does not fit into BF16, as happens within about 1 % of its
/// maximum where rounding goes up.
void require_fits_bf16(float dequantised, float x, std::string_view tensor, int64_t row,
                       int64_t column);

/// The smallest power of two s with max_value * s >= amax, found from the exponent; at least
/// kMinScale; 1 when amax is 0. `max_value` is a normal number >= 1, amax finite and >= 0.
float smallest_power_of_two_scale(float amax, float max_value);

/// Whether x is a positive, normal power of two.
bool is_power_of_two(float x);

}  // namespace quads
