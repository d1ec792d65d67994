// The elementary functions: accuracy against the long double libm, special values, and the very
// bits.
#include "numerics/math.h"

#include <gtest/gtest.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "numerics/test_data.h"

namespace quads {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// |computed - exact| in units of the last place of an FP32 of exact's size.
double ulps(float computed, long double exact) {
  int exponent;
  std::frexp(exact, &exponent);
  return static_cast<double>(std::fabs(computed - exact) * std::ldexp(1.0L, 24 - exponent));
}

uint64_t mix(uint64_t hash, uint64_t bits) { return (hash ^ bits) * 0x100000001B3U; }

std::vector<float> exp_inputs() {
  std::vector<float> inputs;
  for (int i = 0; i <= 200000; ++i) {
    inputs.push_back(
        std::min(kExpMax, kExpMin + static_cast<float>(i) * (kExpMax - kExpMin) / 200000.0F));
    inputs.push_back(std::ldexp(static_cast<float>(i - 100000), -20));  // within +-0.1
  }
  return inputs;
}

// [1, 1e6], (0, 1], the neighbourhood of 1 and all exponents.
std::vector<float> log_inputs() {
  std::vector<float> inputs;
  for (int i = 1; i <= 100000; ++i) {
    inputs.push_back(1.0F + static_cast<float>(i - 1) * 10.0F);
    inputs.push_back(static_cast<float>(i) / 100000.0F);
    inputs.push_back(std::bit_cast<float>(0x3F800000 + i - 50000));
    inputs.push_back(std::bit_cast<float>(0x00800000 + i * 21300));
  }
  return inputs;
}

std::vector<double> angles() {
  std::vector<double> inputs;
  RandomSequence random(1, RandomStream::kTask, 0);
  for (int i = 0; i < 100000; ++i) {
    const double unit = (random.next() * 0x1p-31) - 1.0;
    inputs.push_back(unit * 1e7);
    inputs.push_back(unit * 100.0);
    inputs.push_back(std::round(unit * 1e6) * 1.5707963267948966);  // near a multiple of pi/2
  }
  return inputs;
}

TEST(ExpF32, IsWithinAboutOneUnitOfTheExactValue) {
  for (const float x : exp_inputs()) {
    ASSERT_LT(ulps(exp_f32(x), std::exp(static_cast<long double>(x))), 1.02) << x;
  }
}

TEST(ExpF32, HasExactSpecialValuesAndFlushesBelowTheNormalRange) {
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-kInf), 0.0F);
  EXPECT_EQ(exp_f32(-1e30F), 0.0F);
  EXPECT_EQ(exp_f32(std::nextafter(kExpMin, -kInf)), 0.0F);
  EXPECT_GE(exp_f32(kExpMin), std::numeric_limits<float>::min());
  EXPECT_EQ(exp_f32(kInf), exp_f32(kExpMax));
  EXPECT_EQ(exp_f32(89.0F), exp_f32(kExpMax));
  EXPECT_LT(exp_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp_f32(kNan)));
}

TEST(LogF32, IsWithinOneUnitOfTheExactValue) {
  for (const float x : log_inputs()) {
    if (x == 1.0F) continue;
    ASSERT_LT(ulps(log_f32(x), std::log(static_cast<long double>(x))), 1.0) << x;
  }
}

TEST(LogF32, HasExactSpecialValues) {
  EXPECT_EQ(log_f32(1.0F), 0.0F);
  EXPECT_EQ(log_f32(0.0F), -kInf);
  EXPECT_EQ(log_f32(std::numeric_limits<float>::denorm_min()), -kInf);
  EXPECT_EQ(log_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_f32(kNan)));
}

TEST(SinCosF64, AreWithin2ToTheMinus52OfTheExactValue) {
  for (const double x : angles()) {
    ASSERT_LT(std::fabs(sin_f64(x) - std::sin(static_cast<long double>(x))), 0x1p-52L) << x;
    ASSERT_LT(std::fabs(cos_f64(x) - std::cos(static_cast<long double>(x))), 0x1p-52L) << x;
  }
  EXPECT_EQ(sin_f64(0.0), 0.0);
  EXPECT_EQ(cos_f64(0.0), 1.0);
}

TEST(SinCosF64, RefuseArgumentsBeyondTheirReduction) {
  EXPECT_TRUE(contains(error_of([] { sin_f64(1.1e7); }), "outside"));
  EXPECT_TRUE(contains(error_of([] { cos_f64(std::nan("")); }), "outside"));
}

TEST(InvSqrt, IsTwoCorrectlyRoundedOperations) {
  EXPECT_EQ(inv_sqrt(4.0F), 0.5F);
  EXPECT_EQ(inv_sqrt(2.0F), 1.0F / 1.41421354F);
  EXPECT_EQ(inv_sqrt(1e-6F), 1.0F / 1e-3F);
}

TEST(ReduceSum16, AddsByHalvesAndInNoOtherOrder) {
  float lanes[16] = {};
  lanes[0] = 0x1p24F;
  lanes[8] = -0x1p24F;  // meets lane 0 first, so that the ones survive
  lanes[1] = 1.0F;
  lanes[15] = 1.0F;
  EXPECT_EQ(reduce_sum_16(lanes), 2.0F);
  lanes[8] = 0.0F;
  lanes[4] = -0x1p24F;
  lanes[12] = 1.0F;  // lost in the first halving: -2^24 + 1 is exact, 2^24 - (2^24 - 1) is 1
  EXPECT_EQ(reduce_sum_16(lanes), 3.0F);
  lanes[4] = 0.0F;
  lanes[12] = 0.0F;
  lanes[8] = 1.0F;  // 2^24 + 1 ties to 2^24
  EXPECT_EQ(reduce_sum_16(lanes), 0x1p24F + 2.0F);
}

uint64_t hash_of_all_functions() {
  uint64_t hash = 0xCBF29CE484222325U;
  for (const float x : exp_inputs()) hash = mix(hash, std::bit_cast<uint32_t>(exp_f32(x)));
  for (const float x : log_inputs()) hash = mix(hash, std::bit_cast<uint32_t>(log_f32(x)));
  for (const double x : angles()) {
    hash = mix(hash, std::bit_cast<uint64_t>(sin_f64(x)));
    hash = mix(hash, std::bit_cast<uint64_t>(cos_f64(x)));
  }
  return hash;
}

constexpr uint64_t kGoldenHash = 5317960942759216492U;

TEST(MathBits, AreTheSameOnEveryMachine) { EXPECT_EQ(hash_of_all_functions(), kGoldenHash); }

#if defined(__SSE2__)
TEST(MathBits, DoNotChangeWhenSubnormalsAreFlushed) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040U);  // flush-to-zero, denormals-are-zero
  const uint64_t hash = hash_of_all_functions();
  const float tiny = exp_f32(std::bit_cast<float>(1U));
  _mm_setcsr(saved);
  EXPECT_EQ(hash, kGoldenHash);
  EXPECT_EQ(tiny, 1.0F);
}
#endif

}  // namespace
}  // namespace quads
