// Rope scaling. The formulas are compared with transformers in tests/oracle; here what must hold
// whatever they are.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "numerics/math.h"

namespace quads {
namespace {

constexpr int64_t kHeadDim = 64, kHalf = kHeadDim / 2;

// cos of the angles at one position, and sin.
std::vector<float> row(const RopeConfig& rope, int64_t position) {
  kernels::RopeTable table = make_rope_table(rope, kHeadDim);
  const float* cos = table.cos(position + 1) + position * kHalf;
  const float* sin = table.sin(position + 1) + position * kHalf;
  std::vector<float> out(cos, cos + kHalf);
  out.insert(out.end(), sin, sin + kHalf);
  return out;
}

RopeConfig scaled(RopeType type, double factor) {
  RopeConfig rope;
  rope.type = type;
  rope.factor = factor;
  rope.original_max_position_embeddings = 4096;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  return rope;
}

TEST(Rope, TheDefaultHasTheBitsOfThePlainTable) {
  kernels::RopeTable plain(10000.0, kHeadDim);
  const std::vector<float> ours = row({}, 777);
  for (int64_t i = 0; i < kHalf; ++i) {
    EXPECT_EQ(ours[static_cast<size_t>(i)], plain.cos(778)[777 * kHalf + i]);
  }
}

TEST(Rope, AFactorOfOneChangesNothing) {
  const std::vector<float> expected = row({}, 300);
  for (const RopeType type : {RopeType::kLinear, RopeType::kYarn, RopeType::kLlama3}) {
    const std::vector<float> actual = row(scaled(type, 1.0), 300);
    // Dimensions on the ramp are a sum of two shares: a rounding of the frequency, 300 times.
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 300 * 0x1p-23);
  }
}

TEST(Rope, LinearScalingDividesThePosition) {
  EXPECT_EQ(row(scaled(RopeType::kLinear, 4.0), 400), row({}, 100));
}

TEST(Rope, YarnAndLlama3KeepFastDimensionsAndStretchSlowOnes) {
  for (const RopeType type : {RopeType::kYarn, RopeType::kLlama3}) {
    RopeConfig rope = scaled(type, 8.0);
    rope.attention_factor = 1.0;
    const std::vector<float> actual = row(rope, 64), kept = row({}, 64), stretched = row({}, 8);
    EXPECT_EQ(actual[0], kept[0]);
    EXPECT_EQ(actual[5], kept[5]);
    EXPECT_NE(actual[kHalf + 31], kept[kHalf + 31]);
    EXPECT_NEAR(actual[kHalf + 31], stretched[kHalf + 31], 1e-8);
  }
}

TEST(Rope, YarnScalesTheMagnitudeByTheLogarithmOfTheFactor) {
  for (const double factor : {1.5, 4.0, 32.0}) {
    const std::vector<float> actual = row(scaled(RopeType::kYarn, factor), 9);
    const double expected = 0.1 * std::log(factor) + 1;
    for (size_t i = 0; i < kHalf; ++i) {
      EXPECT_NEAR(std::hypot(actual[i], actual[i + kHalf]), expected, 2e-7 * expected);
    }
  }
}

}  // namespace
}  // namespace quads
