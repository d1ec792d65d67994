#include "rl/estimators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace quads {

Estimate over_problems(std::span<const double> values) {
  if (values.empty()) return {std::numeric_limits<double>::quiet_NaN(), std::nullopt};
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (double value : values) sum += value;
  Estimate estimate{sum / n, std::nullopt};
  if (values.size() > 1) {
    double squares = 0;
    for (double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
    estimate.standard_error = std::sqrt(squares / (n - 1.0) / n);
  }
  return estimate;
}

double pass_at_k(int64_t n, int64_t correct, int64_t k) {
  require(k >= 1 && k <= n, "pass@k: k is {}, expected 1 to the number of samples {}", k, n);
  require(correct >= 0 && correct <= n, "pass@k: {} right samples, expected 0 to {}", correct, n);
  if (correct > n - k) return 1.0;
  double all_wrong = 1.0;
  for (int64_t i = n - correct + 1; i <= n; ++i) {
    all_wrong *= 1.0 - static_cast<double>(k) / static_cast<double>(i);
  }
  return 1.0 - all_wrong;
}

Estimate pass_at_k(std::span<const int64_t> correct, int64_t n, int64_t k) {
  require(!correct.empty(), "pass@k: no problems, expected at least one");
  std::vector<double> values(correct.size());
  for (size_t i = 0; i < correct.size(); ++i) values[i] = pass_at_k(n, correct[i], k);
  return over_problems(values);
}

Estimate pass_at_k(std::span<const int64_t> correct, std::span<const int64_t> n, int64_t k) {
  require(correct.size() == n.size(), "pass@k: {} counts of right samples for {} problems",
          correct.size(), n.size());
  std::vector<double> values;
  for (size_t i = 0; i < correct.size(); ++i) {
    if (n[i] >= k) values.push_back(pass_at_k(n[i], correct[i], k));
  }
  return over_problems(values);
}

Estimate mean_at_k(std::span<const float> rewards, int64_t k) {
  require(k >= 1, "mean@k: k is {}, expected at least 1", k);
  const auto size = static_cast<size_t>(k);
  require(!rewards.empty() && rewards.size() % size == 0,
          "mean@k: {} rewards, expected {} for each of at least one problem", rewards.size(), k);
  std::vector<double> values(rewards.size() / size);
  for (size_t i = 0; i < rewards.size(); ++i) {
    require(std::isfinite(rewards[i]), "mean@k: sample {} has reward {}, expected a finite value",
            i, rewards[i]);
    values[i / size] += rewards[i];
  }
  for (double& value : values) value /= static_cast<double>(k);
  return over_problems(values);
}

Interval wilson_interval(int64_t successes, int64_t trials, double z) {
  require(trials >= 1 && successes >= 0 && successes <= trials,
          "wilson_interval: {} successes in {} trials, expected 0 to trials, and trials >= 1",
          successes, trials);
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double denominator = 1.0 + z * z / n;
  const double center = (p + z * z / (2.0 * n)) / denominator;
  const double half = z / denominator * std::sqrt(p * (1.0 - p) / n + z * z / (4.0 * n * n));
  return {std::max(0.0, center - half), std::min(1.0, center + half)};
}

}  // namespace quads
