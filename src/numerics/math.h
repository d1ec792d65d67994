// Elementary functions with one written order of operations, so that every CPU gives the same bits;
// no libm function whose rounding is unspecified takes part.
//
// The FP32 functions use multiply, add, fused multiply-add, compare-and-select and integer
// operations on the bits only, each rounded once to nearest. A vector version that makes the same
// operations in every lane gives the same bits. No result is subnormal and no subnormal
// intermediate reaches one, so flush-to-zero changes nothing.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quads {

inline constexpr float kExpMax = 88.37F;     // the result's power of two stays at or below 2^127
inline constexpr float kExpMin = -87.3365F;  // the smallest results are normal numbers

/// e^x to 1.01 units in the last place on [kExpMin, kExpMax]. Below (-Inf too) it is 0, above
/// (+Inf too) it is exp_f32(kExpMax), about 2.4e38; NaN gives NaN.
/// x = n ln2 + r with |r| <= ln2 / 2; e^r by the polynomial of Cephes' expf.
inline float exp_f32(float x) {
  constexpr float kLog2E = 0x1.715476p+0F;
  constexpr float kLn2High = 0x1.62e4p-1F;  // 15 bits: n * kLn2High is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20F;
  constexpr float kRoundToInt = 0x1.8p23F;  // adding it leaves the nearest integer in the low bits
  const float clamped = kExpMax < x ? kExpMax : x;  // this order keeps a NaN
  const float shifted = std::fma(clamped, kLog2E, kRoundToInt);
  const float n = shifted - kRoundToInt;
  float r = std::fma(n, -kLn2High, clamped);
  r = std::fma(n, -kLn2Low, r);
  float p = 1.9875691500e-4F;
  p = std::fma(p, r, 1.3981999507e-3F);
  p = std::fma(p, r, 8.3334519073e-3F);
  p = std::fma(p, r, 4.1665795894e-2F);
  p = std::fma(p, r, 1.6666665459e-1F);
  p = std::fma(p, r, 5.0000001201e-1F);
  p = std::fma(p, r * r, r);
  p = p + 1.0F;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127U) << 23);  // 2^n
  return x < kExpMin ? 0.0F : p * power;
}

/// ln x to less than 1 unit in the last place for normal x > 0. Zero and positive subnormals give
/// -Inf, +Inf and NaN themselves; a negative x is a caller's error.
/// x = 2^e m with sqrt(1/2) <= m < sqrt(2); ln m by the polynomial of Cephes' logf.
inline float log_f32(float x) {
  constexpr uint32_t kSqrtHalf = 0x3F3504F3U;
  constexpr float kLn2High = 0x1.63p-1F;  // 9 bits: e * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  const uint32_t offset = std::bit_cast<uint32_t>(x) - kSqrtHalf;
  const auto e = static_cast<float>(static_cast<int32_t>(offset) >> 23);
  const float f = std::bit_cast<float>((offset & 0x7FFFFFU) + kSqrtHalf) - 1.0F;
  const float square = f * f;
  float p = 7.0376836292e-2F;
  p = std::fma(p, f, -1.1514610310e-1F);
  p = std::fma(p, f, 1.1676998740e-1F);
  p = std::fma(p, f, -1.2420140846e-1F);
  p = std::fma(p, f, 1.4249322787e-1F);
  p = std::fma(p, f, -1.6668057665e-1F);
  p = std::fma(p, f, 2.0000714765e-1F);
  p = std::fma(p, f, -2.4999993993e-1F);
  p = std::fma(p, f, 3.3333331174e-1F);
  p = p * f;
  p = std::fma(e, kLn2Low, p * square);
  p = std::fma(-0.5F, square, p);
  p = f + p;
  p = std::fma(e, kLn2High, p);
  const float infinity = std::numeric_limits<float>::infinity();
  if (x < std::numeric_limits<float>::min()) return -infinity;
  return x < infinity ? p : x;
}

/// 1 / sqrt(x): two operations that IEEE 754 rounds correctly, in place of an approximate rsqrt.
inline float inv_sqrt(float x) { return 1.0F / std::sqrt(x); }

/// The sum of 16 partial sums by halves: 16 -> 8 (i with i + 8), 8 -> 4, 4 -> 2, 2 -> 1.
inline float reduce_sum_16(const float lanes[16]) {
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) sums[i] = sums[i] + sums[i + 4];
  for (int i = 0; i < 2; ++i) sums[i] = sums[i] + sums[i + 2];
  return sums[0] + sums[1];
}

/// Sine and cosine for |x| <= 1e7, to 2^-52 absolute; for tables (RoPE) that must not depend on the
/// libm. Fails beyond that range and on NaN.
double sin_f64(double x);
double cos_f64(double x);

}  // namespace quads
