// Scalar references of the row kernels: one lane after another, in the order that the contracts
// name, out of numerics' functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/math.h"

namespace quads::kernels::testing {

/// The sum of f(i) in 16 lanes by i % 16, in order, then the tree.
template <class F>
float lane_sum(int64_t n, F f) {
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] = lanes[i % 16] + f(i);
  return reduce_sum_16(lanes);
}

inline float largest_of(const std::vector<float>& z) {
  return *std::max_element(z.begin(), z.end());
}

inline float reference_log_sum_exp(const std::vector<float>& z, float inv_temperature) {
  const float m = largest_of(z) * inv_temperature;
  const auto n = static_cast<int64_t>(z.size());
  return m + log_f32(lane_sum(n, [&](int64_t i) { return exp_f32(z[i] * inv_temperature - m); }));
}

/// Softmax in FP64, for accuracy and gradients.
inline std::vector<double> softmax_f64(const std::vector<double>& t) {
  const double m = *std::max_element(t.begin(), t.end());
  std::vector<double> p(t.size());
  double sum = 0.0;
  for (size_t i = 0; i < t.size(); ++i) sum += p[i] = std::exp(t[i] - m);
  for (double& v : p) v /= sum;
  return p;
}

inline std::vector<double> to_f64(const std::vector<float>& x) { return {x.begin(), x.end()}; }

/// Central difference of f at x in coordinate i.
template <class F>
double finite_difference(F f, std::vector<double> x, size_t i) {
  const double step = 1e-5;
  const double at = x[i];
  x[i] = at + step;
  const double high = f(x);
  x[i] = at - step;
  return (high - f(x)) / (2.0 * step);
}

/// Whether a BF16 result stands for `want`: half a unit in the last place, and a little for FP32.
inline bool near_bf16(Bf16 got, double want, double absolute = 1e-6) {
  return std::fabs(to_float(got) - want) <= std::fabs(want) * 0x1.1p-8 + absolute;
}

}  // namespace quads::kernels::testing
