#include "rl/gap.h"

#include <algorithm>
#include <vector>

#include "rl/checks.h"
#include "rl/portable_exp.h"

namespace quads {

GapMetrics gap_metrics(std::span<const float> rollout_logprobs,
                       std::span<const float> train_logprobs) {
  require_size(train_logprobs.size(), rollout_logprobs.size(), "train_logprobs");
  require_finite(rollout_logprobs, "rollout_logprobs");
  require_finite(train_logprobs, "train_logprobs");
  GapMetrics gap;
  const size_t n = rollout_logprobs.size();
  if (n == 0) return gap;

  std::vector<double> magnitudes(n);
  double sum = 0, k3_sum = 0, weight_sum = 0, weight_square_sum = 0;
  for (size_t t = 0; t < n; ++t) {
    const double log_weight = static_cast<double>(train_logprobs[t]) - rollout_logprobs[t];
    const double clamped = clamp_log_ratio(log_weight);
    const double weight = portable_exp(clamped);
    magnitudes[t] = std::abs(log_weight);
    sum += magnitudes[t];
    k3_sum += exp_minus_one_minus(clamped);
    weight_sum += weight;
    weight_square_sum += weight * weight;
  }
  const auto count = static_cast<double>(n);
  gap.num_tokens = static_cast<int64_t>(n);
  gap.mean = sum / count;
  gap.kl_k3 = k3_sum / count;
  gap.ess = weight_sum * weight_sum / (count * weight_square_sum);
  gap.max = *std::max_element(magnitudes.begin(), magnitudes.end());
  const size_t rank = n - n / 100;  // ceil(0.99 n)
  const auto p99 = magnitudes.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(magnitudes.begin(), p99, magnitudes.end());
  gap.p99 = *p99;
  return gap;
}

}  // namespace quads
