// The off-policy weights by hand: TIS, MIS and IcePop at each level.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rl/corrections.h"
#include "rl/expect_error.h"

namespace quads {
namespace {

// Two sequences of 2 and 3 tokens; w = e^(old - rollout).
const std::vector<float> kOld{-1, -1, -2, -1, -1};
const std::vector<float> kRollout{-2, -1, -1, -1, -3.5};
const std::vector<int32_t> kOffsets{0, 2, 5};

CorrectionWeights weights(CorrectionKind kind, CorrectionLevel level, double low, double high) {
  return correction_weights(kOld, kRollout, kOffsets, {kind, level, low, high});
}

void expect_weights(const CorrectionWeights& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.weight.size(), expected.size());
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_NEAR(actual.weight[t], expected[t], 1e-14) << t;
  }
}

TEST(CorrectionWeights, AreOneWithoutACorrection) {
  const auto result = correction_weights(kOld, {}, kOffsets, {});
  expect_weights(result, {1, 1, 1, 1, 1});
  EXPECT_EQ(result.in_loss, std::vector<uint8_t>(5, 1));
}

TEST(CorrectionWeights, TokenTisTruncatesEachToken) {
  const auto result = weights(CorrectionKind::kTis, CorrectionLevel::kToken, 0, 2);
  expect_weights(result, {2, 1, std::exp(-1), 1, 2});
  EXPECT_EQ(result.num_truncated, 2);
  EXPECT_EQ(result.num_masked, 0);
  EXPECT_EQ(result.in_loss, std::vector<uint8_t>(5, 1));
}

TEST(CorrectionWeights, TisRaisesToItsLowerBound) {
  const auto result = weights(CorrectionKind::kTis, CorrectionLevel::kToken, 0.5, 100);
  expect_weights(result, {std::exp(1), 1, 0.5, 1, std::exp(2.5)});
  EXPECT_EQ(result.num_truncated, 1);
}

TEST(CorrectionWeights, SequenceTisTruncatesTheProduct) {
  const auto result = weights(CorrectionKind::kTis, CorrectionLevel::kSequence, 0, 3);
  expect_weights(result, {std::exp(1), std::exp(1), 3, 3, 3});
  EXPECT_EQ(result.num_truncated, 3);
}

TEST(CorrectionWeights, GeometricMisMasksByTheMean) {
  const auto result = weights(CorrectionKind::kMis, CorrectionLevel::kGeometric, 0.5, 1.648);
  // Means of log w: 0.5 (e^.5 = 1.6487, just outside) and 0.5 as well.
  expect_weights(result, {0, 0, 0, 0, 0});
  EXPECT_EQ(result.num_masked, 5);
  const auto kept = weights(CorrectionKind::kMis, CorrectionLevel::kGeometric, 0.5, 1.65);
  expect_weights(kept, std::vector<double>(5, std::exp(0.5)));
}

TEST(CorrectionWeights, MisTakesTokensOutOfTheWholeLossIcePopOutOfThePolicyLoss) {
  const std::vector<double> expected{std::exp(1), 1, 0, 1, 0};
  const auto mis = weights(CorrectionKind::kMis, CorrectionLevel::kToken, 0.5, 5);
  expect_weights(mis, expected);
  EXPECT_EQ(mis.in_loss, (std::vector<uint8_t>{1, 1, 0, 1, 0}));
  const auto icepop = weights(CorrectionKind::kIcePop, CorrectionLevel::kToken, 0.5, 5);
  expect_weights(icepop, expected);
  EXPECT_EQ(icepop.in_loss, std::vector<uint8_t>(5, 1));
  EXPECT_EQ(icepop.num_masked, 2);
}

TEST(CorrectionWeights, BoundsAreInclusive) {
  const std::vector<float> old{-1};
  const std::vector<float> rollout{-1};
  const std::vector<int32_t> offsets{0, 1};
  const auto result = correction_weights(old, rollout, offsets,
                                         {CorrectionKind::kMis, CorrectionLevel::kToken, 1, 1});
  expect_weights(result, {1});
  EXPECT_EQ(result.num_masked, 0);
}

TEST(CorrectionWeights, StayFiniteForExtremeRatios) {
  const std::vector<float> old{0, -1e30F};
  const std::vector<float> rollout{-1e30F, 0};
  const std::vector<int32_t> offsets{0, 1, 2};
  const auto result = correction_weights(
      old, rollout, offsets,
      {CorrectionKind::kTis, CorrectionLevel::kToken, 0, std::numeric_limits<double>::infinity()});
  EXPECT_NEAR(result.weight[0], std::exp(20), 1e-6);
  EXPECT_NEAR(result.weight[1], std::exp(-20), 1e-20);
}

TEST(CorrectionWeights, EmptySequencesAndBatchesAreFine) {
  const std::vector<int32_t> offsets{0, 0, 0};
  const auto result = correction_weights(
      {}, {}, offsets, default_correction(CorrectionKind::kMis, CorrectionLevel::kGeometric));
  EXPECT_TRUE(result.weight.empty());
  EXPECT_EQ(result.num_masked, 0);
}

TEST(CorrectionWeights, RefuseOldLogprobsThatAreTheRollouts) {
  expect_error(
      [] {
        correction_weights(kRollout, kRollout, kOffsets, default_correction(CorrectionKind::kTis));
      },
      "recomputed by the trainer");
}

TEST(CorrectionWeights, NameWhatIsWrong) {
  expect_error([] { weights(CorrectionKind::kTis, CorrectionLevel::kToken, 3, 2); },
               "bounds [3, 2]");
  expect_error([] { weights(CorrectionKind::kTis, CorrectionLevel::kToken, -1, 2); },
               "bounds [-1, 2]");
  expect_error([] { weights(CorrectionKind::kIcePop, CorrectionLevel::kSequence, 0.5, 5); },
               "IcePop");
  expect_error(
      [] { correction_weights(kOld, {}, kOffsets, default_correction(CorrectionKind::kMis)); },
      "rollout_logprobs: 0 values, expected 5");
  std::vector<float> rollout = kRollout;
  rollout[3] = std::numeric_limits<float>::quiet_NaN();
  expect_error(
      [&] {
        correction_weights(kOld, rollout, kOffsets, default_correction(CorrectionKind::kTis));
      },
      "rollout_logprobs: token 3 is nan");
}

TEST(DefaultCorrection, HasTheUsualBounds) {
  EXPECT_EQ(default_correction(CorrectionKind::kTis).high, 2.0);
  EXPECT_EQ(default_correction(CorrectionKind::kMis).low, 0.5);
  EXPECT_EQ(default_correction(CorrectionKind::kIcePop).high, 5.0);
}

TEST(ParseName, FindsTheValueOrListsTheKnownOnes) {
  EXPECT_EQ(parse_name<CorrectionKind>("--correction", "icepop"), CorrectionKind::kIcePop);
  EXPECT_EQ(parse_name<CorrectionLevel>("--level", "geometric"), CorrectionLevel::kGeometric);
  EXPECT_EQ(error_of([] { parse_name<CorrectionKind>("--correction", "tsi"); }),
            "--correction: 'tsi' is not one of: none, tis, mis, icepop");
}

}  // namespace
}  // namespace quads
