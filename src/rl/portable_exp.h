// Exponentials whose bits do not depend on the machine: libm picks its variant by the CPU, and the
// loss must be the same everywhere.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace quads {

/// Log-ratios are clamped to +-kMaxLogRatio before they are exponentiated, so that no weight
/// overflows; e^20 = 4.9e8. The bound of verl (SAFETY_BOUND, rollout_corr_helper.py) and slime
/// (mis.py). A clamped ratio has gradient 0, as autograd has it for torch.clamp.
inline constexpr double kMaxLogRatio = 20.0;

inline double clamp_log_ratio(double log_ratio) {
  return std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio);
}

/// 1 / n! for n = 0..16; the factorials up to 16! are exact.
inline constexpr std::array<double, 17> kInverseFactorials = [] {
  std::array<double, 17> values{};
  double factorial = 1.0;
  for (int n = 0; n < 17; ++n) {
    if (n > 0) factorial *= n;
    values[static_cast<size_t>(n)] = 1.0 / factorial;
  }
  return values;
}();

/// e^x for |x| <= 700, within 2 units in the last place; exactly 1 at 0. x = k ln 2 + r with
/// |r| <= ln 2 / 2, then the Taylor series to r^13, whose remainder is below 2^-57.
inline double portable_exp(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01;  // 21 trailing zero bits: k * high exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  const double k = std::floor(x * kLog2E + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double series = kInverseFactorials[13];
  for (size_t n = 13; n-- > 0;) series = series * r + kInverseFactorials[n];
  return std::ldexp(series, static_cast<int>(k));
}

/// e^x - 1 - x for |x| <= 700 without cancellation: never negative, 0 exactly at 0. This is
/// Schulman's k3 estimator (http://joschu.net/blog/kl-approx.html) with x = log p - log q for
/// tokens drawn from q.
inline double exp_minus_one_minus(double x) {
  if (std::abs(x) >= 0.5) return portable_exp(x) - 1.0 - x;
  double series = kInverseFactorials[16];
  for (size_t n = 16; n-- > 2;) series = series * x + kInverseFactorials[n];
  return x * x * series;
}

}  // namespace quads
