#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace quads {
namespace {

// ln x for x > 0 to about 2^-50: x = 2^e m with sqrt(1/2) <= m < sqrt(2), and ln m = 2 atanh(s),
// s = (m - 1) / (m + 1), by its series. Not std::log, whose last bit may differ between machines.
double natural_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact
  if (m < std::numbers::sqrt2 / 2) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0.0, power = s;
  for (int n = 1; n < 27; n += 2, power *= square) sum += power / n;
  return exponent * std::numbers::ln2 + 2 * sum;
}

// The dimension (a fraction of them) that turns `rotations` times over the original context.
double dimension_of(double rotations, const RopeConfig& rope, double head_dim) {
  const double wavelength = static_cast<double>(rope.original_max_position_embeddings) /
                            (rotations * 2 * std::numbers::pi);
  return head_dim * natural_log(wavelength) / (2 * natural_log(rope.theta));
}

// YaRN (https://arxiv.org/abs/2309.00071): dimensions that turn often keep their frequency, slow
// ones are stretched by the factor, with a ramp between them.
std::vector<double> yarn(std::vector<double> frequencies, const RopeConfig& rope,
                         int64_t head_dim) {
  const auto dim = static_cast<double>(head_dim);
  double low = dimension_of(rope.beta_fast, rope, dim);
  double high = dimension_of(rope.beta_slow, rope, dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1 - ramp);
  }
  return frequencies;
}

// Llama 3.1: waves longer than original / low_freq_factor are stretched by the factor, those
// shorter than original / high_freq_factor kept, with a ramp between them.
double llama3(double frequency, const RopeConfig& rope) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

kernels::RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim) {
  std::vector<double> frequencies = kernels::rope_wavelengths(rope.theta, head_dim);
  for (double& f : frequencies) f = 1.0 / f;
  double magnitude = 1.0;
  switch (rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (double& f : frequencies) f /= rope.factor;
      break;
    case RopeType::kYarn:
      frequencies = yarn(std::move(frequencies), rope, head_dim);
      magnitude = rope.attention_factor.value_or(0.1 * natural_log(rope.factor) + 1.0);
      break;
    case RopeType::kLlama3:
      for (double& f : frequencies) f = llama3(f, rope);
      break;
  }
  std::vector<float> rounded;
  rounded.reserve(frequencies.size());
  for (double f : frequencies) rounded.push_back(static_cast<float>(f));
  return {std::move(rounded), magnitude};
}

}  // namespace quads
