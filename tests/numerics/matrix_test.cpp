// Scans and checks of quantisers' input.
#include "numerics/matrix.h"

#include <gtest/gtest.h>

#include <limits>

#include "numerics/test_data.h"

namespace quads {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Matrix, TheFirstNonFiniteValueIsFoundInRowMajorOrder) {
  std::vector<float> x(3 * 5, 1.0F);
  EXPECT_FALSE(find_non_finite(x, 3, 5));
  x[2 * 5 + 1] = kNan;
  x[1 * 5 + 4] = -kInf;
  const auto found = find_non_finite(x, 3, 5);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row, 1);
  EXPECT_EQ(found->column, 4);
  EXPECT_EQ(found->value, -kInf);
}

TEST(Matrix, AmaxNamesTensorRowAndColumnOfANonFiniteValue) {
  std::vector<float> x(2 * 3, -2.0F);
  EXPECT_EQ(checked_amax(x, 2, 3, "w"), 2.0F);
  EXPECT_EQ(checked_amax({}, 0, 3, "w"), 0.0F);
  x[5] = kNan;
  const std::string error = error_of([&] { checked_amax(x, 2, 3, "experts.3.up_proj"); });
  EXPECT_TRUE(contains(error, "experts.3.up_proj: row 1, column 2 is nan")) << error;
}

TEST(Matrix, ShapesThatDoNotFitAreRefused) {
  const std::vector<float> x(6);
  EXPECT_EQ(error_of([&] { require_shape(x, 2, 3, "w"); }), "");
  EXPECT_TRUE(contains(error_of([&] { require_shape(x, 2, 4, "w"); }), "w: 6 elements"));
  EXPECT_NE(error_of([&] { require_shape(x, -2, -3, "w"); }), "");
  EXPECT_NE(error_of([&] { require_shape(x, INT64_MAX, 4, "w"); }), "");
}

TEST(Matrix, ThePowerOfTwoScaleIsTheSmallestThatCoversAmax) {
  for (const float max_value : {448.0F, 2688.0F}) {
    for (int exponent = -80; exponent <= 127; ++exponent) {
      for (const float mantissa : {1.0F, 1.3125F, 1.3125001F, 1.5F, 1.75F, 1.7500001F, 1.9999F}) {
        const float amax = std::ldexp(mantissa, exponent);
        const float scale = smallest_power_of_two_scale(amax, max_value);
        EXPECT_TRUE(is_power_of_two(scale));
        EXPECT_GE(static_cast<double>(max_value) * scale, amax);
        EXPECT_LT(static_cast<double>(max_value) * scale / 2, amax);
      }
    }
  }
}

TEST(Matrix, TheScaleIsOneForZeroAndBoundedBelow) {
  EXPECT_EQ(smallest_power_of_two_scale(0.0F, 2688.0F), 1.0F);
  EXPECT_EQ(smallest_power_of_two_scale(1e-37F, 2688.0F), kMinScale);
  EXPECT_EQ(smallest_power_of_two_scale(std::bit_cast<float>(1U), 2688.0F), kMinScale);
  for (const float bad : {kNan, kInf, -1.0F}) {
    EXPECT_NE(error_of([&] { smallest_power_of_two_scale(bad, 448.0F); }), "") << bad;
  }
}

TEST(Matrix, PowersOfTwoAreRecognised) {
  for (const float x : {1.0F, 0.5F, 0x1p-126F, 0x1p127F}) EXPECT_TRUE(is_power_of_two(x)) << x;
  for (const float x : {0.0F, -1.0F, 3.0F, 0x1p-127F, kInf, kNan}) {
    EXPECT_FALSE(is_power_of_two(x)) << x;
  }
}

}  // namespace
}  // namespace quads
