// pass@k, mean@k and the Wilson interval against counting and known values.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "rl/estimators.h"
#include "rl/expect_error.h"

namespace quads {
namespace {

/// pass@k by going through all k-subsets of n samples of which the first `correct` are right.
double counted_pass_at_k(int n, int correct, int k) {
  int subsets = 0, passed = 0;
  for (unsigned set = 0; set < (1U << n); ++set) {
    if (std::popcount(set) != k) continue;
    ++subsets;
    passed += (set & ((1U << correct) - 1)) != 0;
  }
  return static_cast<double>(passed) / subsets;
}

TEST(PassAtK, EqualsCountingAllSubsets) {
  for (int n = 1; n <= 8; ++n) {
    for (int correct = 0; correct <= n; ++correct) {
      for (int k = 1; k <= n; ++k) {
        EXPECT_NEAR(pass_at_k(n, correct, k), counted_pass_at_k(n, correct, k), 1e-14)
            << n << ' ' << correct << ' ' << k;
      }
    }
  }
}

TEST(PassAtK, IsStableForManySamples) {
  EXPECT_NEAR(pass_at_k(1'000'000, 1, 1000), 1e-3, 1e-12);
  EXPECT_NEAR(pass_at_k(100'000, 50'000, 1), 0.5, 1e-10);
  EXPECT_EQ(pass_at_k(100'000, 0, 100), 0.0);
  EXPECT_EQ(pass_at_k(100'000, 99'999, 2), 1.0);
}

TEST(PassAtK, AveragesProblemsWithTheirStandardError) {
  const std::vector<int64_t> correct{0, 4, 2, 2};
  const Estimate estimate = pass_at_k(correct, 4, 1);
  EXPECT_DOUBLE_EQ(estimate.mean, 0.5);
  EXPECT_NEAR(estimate.standard_error.value(), std::sqrt(0.5 / 3 / 4), 1e-15);
}

TEST(PassAtK, RejectsImpossibleCounts) {
  expect_error([] { pass_at_k(4, 5, 1); }, "5 right samples, expected 0 to 4");
  expect_error([] { pass_at_k(4, -1, 1); }, "-1 right samples");
  expect_error([] { pass_at_k(4, 1, 5); }, "k is 5");
  expect_error([] { pass_at_k(4, 1, 0); }, "k is 0");
  expect_error([] { pass_at_k(std::vector<int64_t>{}, 4, 1); }, "no problems");
}

TEST(MeanAtK, AveragesWithinThenOverProblems) {
  const Estimate estimate = mean_at_k(std::vector<float>{1, 0, 1, 1, 0, 0}, 2);
  EXPECT_DOUBLE_EQ(estimate.mean, 0.5);
  EXPECT_NEAR(estimate.standard_error.value(), std::sqrt(0.5 / 2 / 3), 1e-15);
}

TEST(MeanAtK, HasNoStandardErrorForOneProblem) {
  const Estimate estimate = mean_at_k(std::vector<float>{1, 0}, 2);
  EXPECT_DOUBLE_EQ(estimate.mean, 0.5);
  EXPECT_FALSE(estimate.standard_error.has_value());
}

TEST(MeanAtK, NamesWhatIsWrong) {
  expect_error([] { mean_at_k({}, 2); }, "0 rewards");
  expect_error([] { mean_at_k(std::vector<float>{1, 0, 1}, 2); }, "3 rewards");
  expect_error([] { mean_at_k(std::vector<float>{1}, 0); }, "k is 0");
  expect_error(
      [] {
        mean_at_k(std::vector<float>{1, std::nanf("")}, 1);
      },
      "sample 1 has reward nan");
}

TEST(WilsonInterval, MatchesItsClosedFormsAtOneHalfAndAtZero) {
  constexpr double kZ = 1.959963984540054;
  const Interval half = wilson_interval(5, 10);
  EXPECT_NEAR(half.low, 0.5 - kZ / (2 * std::sqrt(10 + kZ * kZ)), 1e-15);
  EXPECT_NEAR(half.high, 0.5 + kZ / (2 * std::sqrt(10 + kZ * kZ)), 1e-15);
  const Interval none = wilson_interval(0, 10);
  EXPECT_EQ(none.low, 0.0);
  EXPECT_NEAR(none.high, kZ * kZ / (10 + kZ * kZ), 1e-15);
}

TEST(WilsonInterval, IsSymmetricAndNarrowsWithTrials) {
  const Interval few = wilson_interval(3, 10);
  const Interval mirrored = wilson_interval(7, 10);
  EXPECT_NEAR(few.low, 1 - mirrored.high, 1e-15);
  const Interval many = wilson_interval(3000, 10000);
  EXPECT_LT(many.high - many.low, (few.high - few.low) / 10);
  EXPECT_NEAR(wilson_interval(10, 10).high, 1.0, 1e-15);
  EXPECT_LE(wilson_interval(10, 10).high, 1.0);
}

TEST(WilsonInterval, RejectsImpossibleCounts) {
  expect_error([] { wilson_interval(0, 0); }, "0 trials");
  expect_error([] { wilson_interval(3, 2); }, "3 successes in 2 trials");
}

TEST(PassAtK, ProblemsWithFewerSamplesThanKAreLeftOut) {
  const std::vector<int64_t> correct = {1, 1, 0}, n = {2, 1, 0};
  EXPECT_DOUBLE_EQ(pass_at_k(correct, n, 1).mean, .75);
  EXPECT_DOUBLE_EQ(pass_at_k(correct, n, 2).mean, 1);
  EXPECT_TRUE(std::isnan(pass_at_k(correct, n, 3).mean));
  EXPECT_THROW(pass_at_k(correct, std::vector<int64_t>{1}, 1), Error);
}

}  // namespace
}  // namespace quads
