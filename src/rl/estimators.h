// What an evaluation reports: pass@k, mean@k, their standard errors and an interval for pass@1.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace quads {

struct Estimate {
  double mean = 0;
  /// Standard error over problems (samples of a problem are not independent); none for one problem.
  std::optional<double> standard_error;
};

/// Probability that at least one of k samples drawn without replacement from n, of which `correct`
/// are right, is right: 1 - C(n - c, k) / C(n, k) as a product that neither overflows nor cancels
/// (Chen et al., arXiv 2107.03374). Needs 1 <= k <= n and 0 <= correct <= n.
double pass_at_k(int64_t n, int64_t correct, int64_t k);

/// pass@k over problems. correct: [num_problems], right samples out of n each; at least one
/// problem.
Estimate pass_at_k(std::span<const int64_t> correct, int64_t n, int64_t k);

/// The same with n[i] samples of problem i. Problems with fewer than k are left out; the mean is
/// NaN if none is left.
Estimate pass_at_k(std::span<const int64_t> correct, std::span<const int64_t> n, int64_t k);

/// Mean reward over all samples. rewards: [num_problems * k], a problem's samples side by side; at
/// least one problem, finite.
Estimate mean_at_k(std::span<const float> rewards, int64_t k);

/// Mean and standard error of a figure a problem; NaN for no problems.
Estimate over_problems(std::span<const double> values);

struct Interval {
  double low = 0;
  double high = 0;
};

/// Wilson's score interval of a proportion, 95 % by default (Wilson, JASA 1927); within [0, 1] and
/// sensible at 0 and at all successes. Needs 0 <= successes <= trials and trials >= 1.
Interval wilson_interval(int64_t successes, int64_t trials, double z = 1.959963984540054);

}  // namespace quads
