// The machine-independent exponentials against libm in long double.
#include <gtest/gtest.h>

#include <limits>

#include "rl/portable_exp.h"

namespace quads {
namespace {

constexpr double kUlp = std::numeric_limits<double>::epsilon();

TEST(PortableExp, IsWithinTwoUnitsOfLibm) {
  for (double x = -700.0; x <= 700.0; x += 0.0317) {
    const auto expected = static_cast<double>(std::exp(static_cast<long double>(x)));
    ASSERT_LE(std::abs(portable_exp(x) - expected), 2 * kUlp * expected) << x;
  }
}

TEST(PortableExp, IsExactlyOneAtZero) {
  EXPECT_EQ(portable_exp(0.0), 1.0);
  EXPECT_EQ(portable_exp(-0.0), 1.0);
}

TEST(ExpMinusOneMinus, KeepsItsDigitsNearZeroAndAcrossTheSeam) {
  for (double x : {-20.0, -3.0, -0.5, -0.4999999, -0.1, -1e-4, -1e-9, 1e-9, 1e-6, 1e-3, 0.3,
                   0.4999999, 0.5, 2.0, 20.0}) {
    // libm's difference loses its digits near 0; there three terms of the series are enough.
    const long double lx = x;
    const long double near = lx * lx / 2 + lx * lx * lx / 6 + lx * lx * lx * lx / 24;
    const long double expected = std::abs(x) < 1e-5 ? near : std::expm1(lx) - lx;
    EXPECT_NEAR(exp_minus_one_minus(x), static_cast<double>(expected),
                1e-14 * static_cast<double>(expected))
        << x;
  }
}

TEST(ExpMinusOneMinus, IsZeroOnlyAtZero) {
  EXPECT_EQ(exp_minus_one_minus(0.0), 0.0);
  EXPECT_GT(exp_minus_one_minus(1e-30), 0.0);
  EXPECT_GT(exp_minus_one_minus(-1e-30), 0.0);
}

TEST(ClampLogRatio, BoundsBothSides) {
  EXPECT_EQ(clamp_log_ratio(1e30), 20.0);
  EXPECT_EQ(clamp_log_ratio(-1e30), -20.0);
  EXPECT_EQ(clamp_log_ratio(0.25), 0.25);
}

}  // namespace
}  // namespace quads
