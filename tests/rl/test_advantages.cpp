// Group advantages by hand, DAPO's filter and length penalty.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rl/advantages.h"
#include "rl/expect_error.h"

namespace quads {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(GroupAdvantages, GrpoDividesByTheUnbiasedDeviation) {
  const std::vector<float> rewards{1, 0, 0, 1, 3, 1};
  const auto advantages = group_advantages(std::span(rewards).first(4), 4);
  const double std = std::sqrt(4 * 0.25 / 3);
  EXPECT_FLOAT_EQ(advantages[0], static_cast<float>(0.5 / (std + 1e-6)));
  EXPECT_FLOAT_EQ(advantages[1], static_cast<float>(-0.5 / (std + 1e-6)));
  const auto pairs = group_advantages(rewards, 2);
  EXPECT_FLOAT_EQ(pairs[4], static_cast<float>(1 / (std::sqrt(2.0) + 1e-6)));
}

TEST(GroupAdvantages, DrGrpoSubtractsTheMeanOnly) {
  const std::vector<float> rewards{1, 0, 0, 1, 4, 1, 1, 2};
  const auto advantages = group_advantages(rewards, 4, {.divide_by_std = false});
  EXPECT_EQ(advantages, (std::vector<float>{0.5, -0.5, -0.5, 0.5, 2, -1, -1, 0}));
}

TEST(GroupAdvantages, EqualRewardsGiveExactlyZero) {
  // The mean of three 0.1f is not 0.1f in every arithmetic.
  for (float reward : {0.1F, 0.0F, 1.0F, -7.3F, 3e38F}) {
    const std::vector<float> rewards(3, reward);
    for (float advantage : group_advantages(rewards, 3)) EXPECT_EQ(advantage, 0.0F);
  }
}

TEST(GroupAdvantages, SingleSampleGivesZero) {
  EXPECT_EQ(group_advantages(std::vector<float>{5}, 1), std::vector<float>{0});
}

TEST(GroupAdvantages, SamplesWithoutRewardLeaveTheirGroup) {
  const auto advantages = group_advantages(std::vector<float>{1, kNan, 0, 0, 2, kNan, kNan, kNan},
                                           4, {.divide_by_std = false});
  EXPECT_FLOAT_EQ(advantages[0], 2.0F / 3);
  EXPECT_EQ(advantages[1], 0.0F);
  EXPECT_FLOAT_EQ(advantages[2], -1.0F / 3);
  for (size_t i = 4; i < 8; ++i) EXPECT_EQ(advantages[i], 0.0F);
}

TEST(GroupAdvantages, SumToZeroAndDoNotDependOnShift) {
  const std::vector<float> rewards{0.25, 1.5, -2, 8};
  std::vector<float> shifted = rewards;
  for (float& reward : shifted) reward += 16;
  const auto advantages = group_advantages(rewards, 4);
  EXPECT_EQ(advantages, group_advantages(shifted, 4));
  EXPECT_NEAR(advantages[0] + advantages[1] + advantages[2] + advantages[3], 0, 1e-6);
}

TEST(GroupAdvantages, EmptyBatchGivesNothing) { EXPECT_TRUE(group_advantages({}, 4).empty()); }

TEST(TrainableSamples, NeedARewardAndAnotherOfTheirGroupThatHasOne) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> rewards = {1, none, 0, none, none, 1, none, none, none, 2, 2, 2};
  EXPECT_EQ(trainable_samples(rewards, 3), (std::vector<bool>{1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(trainable_samples(std::vector<float>{1, none}, 1), (std::vector<bool>{1, 0}));
  EXPECT_TRUE(trainable_samples({}, 4).empty());
  EXPECT_THROW(trainable_samples(rewards, 5), Error);
  EXPECT_THROW(trainable_samples(rewards, 0), Error);
}

TEST(GroupAdvantages, NamesWhatIsWrong) {
  expect_error([] { group_advantages(std::vector<float>{1, 2, 3}, 2); }, "multiple of the group");
  expect_error([] { group_advantages(std::vector<float>{1, kInf}, 2); }, "sample 1 has reward inf");
  expect_error([] { group_advantages(std::vector<float>{1}, 0); }, "group_size is 0");
  expect_error([] { group_advantages(std::vector<float>{1}, 1, {.eps = -1}); }, "eps is -1");
}

TEST(GroupIsInformative, NeedsTwoDifferentRewards) {
  EXPECT_TRUE(group_is_informative(std::vector<float>{0, 0, 1}));
  EXPECT_FALSE(group_is_informative(std::vector<float>{1, 1, 1}));
  EXPECT_FALSE(group_is_informative(std::vector<float>{0.0F, -0.0F}));
  EXPECT_FALSE(group_is_informative(std::vector<float>{kNan, 1, kNan, 1}));
  EXPECT_TRUE(group_is_informative(std::vector<float>{kNan, 1, kNan, 0}));
  EXPECT_FALSE(group_is_informative(std::vector<float>{kNan}));
  EXPECT_FALSE(group_is_informative({}));
}

TEST(OverlongPenalty, FallsLinearlyOverTheCache) {
  EXPECT_EQ(overlong_penalty(0, 20, 5), 0.0F);
  EXPECT_EQ(overlong_penalty(15, 20, 5), 0.0F);
  EXPECT_FLOAT_EQ(overlong_penalty(16, 20, 5), -0.2F);
  EXPECT_FLOAT_EQ(overlong_penalty(19, 20, 5), -0.8F);
  EXPECT_EQ(overlong_penalty(20, 20, 5), -1.0F);
  EXPECT_EQ(overlong_penalty(21, 20, 5), -1.0F);
  EXPECT_FLOAT_EQ(overlong_penalty(10, 20, 20), -0.5F);
}

TEST(OverlongPenalty, RejectsLengthsThatMakeNoSense) {
  expect_error([] { overlong_penalty(3, 20, 0); }, "cache length is 0");
  expect_error([] { overlong_penalty(3, 20, 21); }, "cache length is 21");
  expect_error([] { overlong_penalty(-1, 20, 5); }, "length is -1");
}

}  // namespace
}  // namespace quads
