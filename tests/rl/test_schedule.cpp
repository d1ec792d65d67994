// Warm-up and decay of the learning rate at their corners.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "rl/expect_error.h"
#include "rl/schedule.h"

namespace quads {
namespace {

TEST(LearningRate, ConstantStaysAfterTheWarmUp) {
  const LrSchedule schedule{.lr = 1e-4, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 0.25e-4);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2), 0.75e-4);
  EXPECT_EQ(learning_rate(schedule, 3), 1e-4);
  EXPECT_EQ(learning_rate(schedule, 1'000'000), 1e-4);
}

TEST(LearningRate, LinearReachesTheMinimumAtTheEnd) {
  const LrSchedule schedule{LrDecay::kLinear, 1.0, 0.2, 2, 10};
  EXPECT_EQ(learning_rate(schedule, 1), 1.0);
  EXPECT_EQ(learning_rate(schedule, 2), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 6), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 99), 0.2);
}

TEST(LearningRate, CosineFollowsHalfAPeriod) {
  const LrSchedule schedule{LrDecay::kCosine, 1.0, 0.0, 0, 8};
  EXPECT_EQ(learning_rate(schedule, 0), 1.0);
  EXPECT_NEAR(learning_rate(schedule, 2), 0.5 * (1 + std::numbers::sqrt2 / 2), 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 4), 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 8), 0.0, 1e-15);
}

TEST(LearningRate, DecaysNeverRiseAndStayInRange) {
  for (LrDecay decay : {LrDecay::kLinear, LrDecay::kCosine}) {
    const LrSchedule schedule{decay, 3e-4, 1e-5, 5, 100};
    for (int64_t step = 5; step < 120; ++step) {
      const double now = learning_rate(schedule, step);
      EXPECT_LE(learning_rate(schedule, step + 1), now);
      EXPECT_GE(now, 1e-5);
      EXPECT_LE(now, 3e-4);
    }
  }
}

TEST(LearningRate, NamesWhatIsWrong) {
  expect_error([] { learning_rate({.lr = 1}, -1); }, "step is -1");
  expect_error([] { learning_rate({.lr = -1}, 0); }, "--lr is -1");
  expect_error([] { learning_rate({.lr = 1, .min_lr = 2}, 0); }, "--min-lr is 2");
  expect_error([] { learning_rate({.lr = 1, .warmup_steps = -1}, 0); }, "warm-up is -1");
  expect_error([] { learning_rate({LrDecay::kCosine, 1, 0, 10, 10}, 0); }, "nothing of 10");
  expect_error([] { parse_name<LrDecay>("--lr-decay-style", "step"); }, "constant, cosine, linear");
}

}  // namespace
}  // namespace quads
