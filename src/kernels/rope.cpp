#include "kernels/rope.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "numerics/math.h"

namespace quads::kernels {
namespace {

double power(double x, int64_t n) {
  double result = 1.0;
  for (int64_t i = 0; i < n; ++i) result *= x;
  return result;
}

// x^(1/n) for x >= 1 by Newton's iteration, which falls towards the root from above. Not std::pow:
// its last bit may differ between machines, and with it a whole rollout.
double root(double x, int64_t n) {
  double y = 1.0;
  while (power(y, n) < x) y *= 2.0;
  for (;;) {
    const double below = power(y, n - 1);
    const double next = y - (below * y - x) / (static_cast<double>(n) * below);
    if (!(next < y)) return y;
    y = next;
  }
}

}  // namespace

std::vector<double> rope_wavelengths(double theta, int64_t head_dim) {
  require(theta >= 1.0 && theta <= 1e12, "rope_theta is {}: it must be between 1 and 1e12", theta);
  require(head_dim >= 2 && head_dim <= 256 && head_dim % 2 == 0,
          "head_dim is {}: rotary embedding needs an even number up to 256", head_dim);
  const double step = root(theta, head_dim / 2);
  std::vector<double> wavelengths = {1.0};
  while (std::ssize(wavelengths) < head_dim / 2) wavelengths.push_back(wavelengths.back() * step);
  return wavelengths;
}

RopeTable::RopeTable(std::vector<float> inv_freq, double magnitude)
    : inv_freq_(std::move(inv_freq)), magnitude_(magnitude) {}

RopeTable::RopeTable(double theta, int64_t head_dim) : magnitude_(1.0) {
  for (double wavelength : rope_wavelengths(theta, head_dim)) {
    inv_freq_.push_back(static_cast<float>(1.0 / wavelength));
  }
}

void RopeTable::grow(int64_t positions) {
  if (positions <= positions_) return;
  require(positions <= kMaxPositions, "rotary embedding of {} positions: at most {} are supported",
          positions, kMaxPositions);
  const int64_t target = std::min(std::max(positions, 2 * positions_), kMaxPositions);
  for (int64_t position = positions_; position < target; ++position) {
    for (float frequency : inv_freq_) {
      const float angle = static_cast<float>(position) * frequency;
      cos_.push_back(static_cast<float>(magnitude_ * cos_f64(angle)));
      sin_.push_back(static_cast<float>(magnitude_ * sin_f64(angle)));
    }
  }
  positions_ = target;
}

const float* RopeTable::cos(int64_t positions) {
  grow(positions);
  return cos_.data();
}

const float* RopeTable::sin(int64_t positions) {
  grow(positions);
  return sin_.data();
}

}  // namespace quads::kernels
