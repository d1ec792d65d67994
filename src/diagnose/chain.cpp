#include "diagnose/chain.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quads {
namespace {

double on_grid(const Stage& stage, size_t token) {
  const double value = stage.logprobs[token];
  require(std::isfinite(value), "stage {}: the log-probability of token {} is {}", stage.name,
          token, value);
  return std::nearbyint(value * 0x1p40) * 0x1p-40;
}

Delta difference(const Stage& a, const Stage& b, const std::string& name) {
  require(a.logprobs.size() == b.logprobs.size(), "stage {} has {} tokens, stage {} has {}", a.name,
          a.logprobs.size(), b.name, b.logprobs.size());
  Delta delta{name, {}};
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    delta.values.push_back(on_grid(a, i) - on_grid(b, i));
  }
  return delta;
}

}  // namespace

std::vector<Delta> differences(std::span<const Stage> stages,
                               const std::vector<std::string>& names) {
  require(stages.size() >= 2 && names.size() + 1 == stages.size(),
          "a chain of {} stages with {} names of differences", stages.size(), names.size());
  std::vector<Delta> deltas;
  for (size_t i = 0; i + 1 < stages.size(); ++i) {
    deltas.push_back(difference(stages[i], stages[i + 1], names[i]));
  }
  deltas.push_back(difference(stages.front(), stages.back(), "gap"));
  return deltas;
}

DeltaSummary summarize_delta(const Delta& delta, const Delta& gap) {
  DeltaSummary summary{.name = delta.name};
  const size_t n = delta.values.size();
  if (n == 0) return summary;
  std::vector<double> sizes;
  double product = 0, square = 0;
  for (size_t i = 0; i < n; ++i) {
    const double d = delta.values[i];
    sizes.push_back(std::abs(d));
    summary.mean += std::abs(d);
    summary.bias += d;
    const double log_w = std::clamp(-d, -20.0, 20.0);
    summary.kl_k3 += std::expm1(log_w) - log_w;
    product += d * gap.values[i];
    square += gap.values[i] * gap.values[i];
  }
  const auto count = static_cast<double>(n);
  summary.mean /= count;
  summary.bias /= count;
  summary.kl_k3 /= count;
  summary.share = square > 0 ? product / square : 0;
  std::ranges::sort(sizes);
  summary.max = sizes.back();
  summary.p99 = sizes[(99 * n + 99) / 100 - 1];
  return summary;
}

}  // namespace quads
