// The gap metrics by hand, at zero and for hostile input.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "rl/expect_error.h"
#include "rl/gap.h"

namespace quads {
namespace {

TEST(GapMetrics, MatchAHandComputedCase) {
  const std::vector<float> rollout{-1, -2, -0.5};
  const std::vector<float> train{-1.5, -2, 0};
  const GapMetrics gap = gap_metrics(rollout, train);
  EXPECT_EQ(gap.num_tokens, 3);
  EXPECT_DOUBLE_EQ(gap.max, 0.5);
  EXPECT_DOUBLE_EQ(gap.mean, 1.0 / 3);
  EXPECT_DOUBLE_EQ(gap.p99, 0.5);
  const double up = std::exp(0.5), down = std::exp(-0.5);
  EXPECT_NEAR(gap.kl_k3, ((up - 1.5) + (down - 0.5)) / 3, 1e-15);
  EXPECT_NEAR(gap.ess, std::pow(up + down + 1, 2) / (3 * (up * up + down * down + 1)), 1e-15);
}

TEST(GapMetrics, AreExactlyZeroForEqualBits) {
  std::vector<float> logprobs(12345);
  for (size_t i = 0; i < logprobs.size(); ++i) logprobs[i] = -0.001F * static_cast<float>(i);
  const GapMetrics gap = gap_metrics(logprobs, logprobs);
  EXPECT_EQ(gap.max, 0.0);
  EXPECT_EQ(gap.mean, 0.0);
  EXPECT_EQ(gap.p99, 0.0);
  EXPECT_EQ(gap.kl_k3, 0.0);
  EXPECT_EQ(gap.ess, 1.0);
}

TEST(GapMetrics, SeeOneUnitInTheLastPlace) {
  const std::vector<float> rollout{-1, -2};
  const std::vector<float> train{-1, std::nextafter(-2.0F, 0.0F)};
  const GapMetrics gap = gap_metrics(rollout, train);
  EXPECT_EQ(gap.max, 0x1p-23);
  EXPECT_GT(gap.mean, 0.0);
  EXPECT_GT(gap.kl_k3, 0.0);
}

TEST(GapMetrics, P99IsTheNearestRank) {
  std::vector<float> rollout(200, 0.0F), train(200);
  for (size_t i = 0; i < 200; ++i) train[i] = -static_cast<float>((i * 37) % 200 + 1);  // 1..200
  EXPECT_EQ(gap_metrics(rollout, train).p99, 198.0);
  rollout.resize(101);
  train.resize(101);
  for (size_t i = 0; i < 101; ++i) train[i] = -static_cast<float>(i + 1);
  EXPECT_EQ(gap_metrics(rollout, train).p99, 100.0);
  rollout.resize(1);
  train.resize(1);
  EXPECT_EQ(gap_metrics(rollout, train).p99, 1.0);
}

TEST(GapMetrics, StayFiniteForExtremeGaps) {
  const std::vector<float> rollout{0, -3e38F};
  const std::vector<float> train{-3e38F, 3e38F};
  const GapMetrics gap = gap_metrics(rollout, train);
  EXPECT_NEAR(gap.max, 6e38, 1e33);
  EXPECT_NEAR(gap.kl_k3, (std::exp(20) - 21 + std::exp(-20) + 19) / 2, 1e-6);
  EXPECT_NEAR(gap.ess, 0.5, 1e-9);
}

TEST(GapMetrics, OfNoTokensAreZero) {
  const GapMetrics gap = gap_metrics({}, {});
  EXPECT_EQ(gap.num_tokens, 0);
  EXPECT_EQ(gap.max, 0.0);
  EXPECT_EQ(gap.ess, 1.0);
}

TEST(GapMetrics, NameTheTokenThatIsNotFinite) {
  const std::vector<float> good{-1, -2, -3};
  std::vector<float> bad = good;
  bad[1] = -std::numeric_limits<float>::infinity();
  expect_error([&] { gap_metrics(bad, good); }, "rollout_logprobs: token 1 is -inf");
  expect_error([&] { gap_metrics(good, bad); }, "train_logprobs: token 1 is -inf");
  expect_error([&] { gap_metrics(good, std::span(good).first(2)); },
               "train_logprobs: 2 values, expected 3");
}

}  // namespace
}  // namespace quads
