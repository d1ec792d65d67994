// E2M1, E4M3 and BF16: every code, every boundary.
#include <gtest/gtest.h>

#include <limits>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/nvfp4.h"

namespace quads {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float next_up(float x) { return std::nextafter(x, kInf); }
float next_down(float x) { return std::nextafter(x, -kInf); }

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Bf16 x{static_cast<uint16_t>(bits)};
    const Bf16 back = to_bf16(to_float(x));
    if (std::isnan(to_float(x))) {
      EXPECT_TRUE(std::isnan(to_float(back))) << bits;
    } else {
      EXPECT_EQ(back.bits, x.bits);
    }
  }
}

TEST(Bf16, RoundsToNearestAndTiesToEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const uint32_t tie = (bits << 16) | 0x8000U;
    EXPECT_EQ(to_bf16(std::bit_cast<float>(tie - 1)).bits, bits);
    EXPECT_EQ(to_bf16(std::bit_cast<float>(tie)).bits, bits + bits % 2);
    EXPECT_EQ(to_bf16(std::bit_cast<float>(tie + 1)).bits, bits + 1);  // the last one is Inf
  }
}

TEST(E2m1, DecodesAndEncodesEveryCode) {
  const float values[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(e2m1_decode(code), code < 8 ? values[code] : -values[code - 8]);
    EXPECT_EQ(std::signbit(e2m1_decode(code)), code >= 8);
    EXPECT_EQ(e2m1_encode(e2m1_decode(code)), code);
  }
}

TEST(E2m1, TiesGoToTheEvenCodeAndNeighboursToTheNearest) {
  const float boundaries[7] = {.25, .75, 1.25, 1.75, 2.5, 3.5, 5};
  for (uint8_t below = 0; below < 7; ++below) {
    const uint8_t even = below % 2 == 0 ? below : below + 1;
    EXPECT_EQ(e2m1_encode(boundaries[below]), even);
    EXPECT_EQ(e2m1_encode(-boundaries[below]), even | 8);
    EXPECT_EQ(e2m1_encode(next_down(boundaries[below])), below);
    EXPECT_EQ(e2m1_encode(next_up(boundaries[below])), below + 1);
  }
}

TEST(E2m1, SaturatesAndKeepsTheSignOfZero) {
  EXPECT_EQ(e2m1_encode(1e30F), 7);
  EXPECT_EQ(e2m1_encode(-kInf), 15);
  EXPECT_EQ(e2m1_encode(0.0F), 0);
  EXPECT_EQ(e2m1_encode(-0.0F), 8);
  EXPECT_EQ(e2m1_encode(-1e-30F), 8);
}

TEST(E2m1, ComparingWithScaledBoundariesEqualsDividingForEveryBlockScale) {
  const float boundaries[7] = {.25, .75, 1.25, 1.75, 2.5, 3.5, 5};
  for (uint8_t sf = 1; sf <= kE4m3MaxCode; ++sf) {
    for (const float g : {0x1p-100F, 0x1p-8F, 1.0F, 0x1p100F}) {
      const float scale = e4m3_decode(sf) * g;
      for (const float boundary : boundaries) {
        float x = next_down(next_down(boundary * scale));
        for (int step = 0; step < 5; ++step, x = next_up(x)) {
          EXPECT_EQ(e2m1_encode_scaled(x, scale), e2m1_encode(x / scale)) << x << " / " << scale;
        }
      }
    }
  }
}

// value = (-1)^s 2^(e - 7) (1 + m / 8), or (-1)^s 2^-6 m / 8 for e = 0; 7F and FF are NaN.
TEST(E4m3, DecodesAll256CodesAsTheFormatSays) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const double fraction = (code & 7) / 8.0;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1.0 + fraction, exponent - 7);
    const float value = e4m3_decode(static_cast<uint8_t>(code));
    EXPECT_EQ(e4m3_is_nan(code), (code & 127) == 127);
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, code < 128 ? magnitude : -magnitude) << code;
      EXPECT_EQ(std::signbit(value), code >= 128);
      EXPECT_EQ(e4m3_encode(value), code);
    }
  }
  EXPECT_EQ(e4m3_decode(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_decode(0x7E), 448.0F);
}

TEST(E4m3, RoundsToNearestAndTiesToEvenBetweenAllNeighbours) {
  for (uint8_t below = 0; below < kE4m3MaxCode; ++below) {
    const float tie = (e4m3_decode(below) + e4m3_decode(below + 1)) / 2;
    EXPECT_EQ(e4m3_encode(tie), below + below % 2);
    EXPECT_EQ(e4m3_encode(-tie), (below + below % 2) | 0x80);
    EXPECT_EQ(e4m3_encode(next_down(tie)), below);
    EXPECT_EQ(e4m3_encode(next_up(tie)), below + 1);
  }
}

TEST(E4m3, SaturatesAt448AndKeepsNan) {
  for (const float x : {448.0F, 463.9F, 464.0F, 465.0F, 1e30F, kInf}) {
    EXPECT_EQ(e4m3_encode(x), 0x7E) << x;
    EXPECT_EQ(e4m3_encode(-x), 0xFE) << x;
  }
  EXPECT_TRUE(e4m3_is_nan(e4m3_encode(kNan)));
  EXPECT_EQ(e4m3_encode(std::numeric_limits<float>::denorm_min()), 0);
}

// The idea that the one BF16 GEMM core stands on: at most 6 significand bits, whatever the power.
TEST(Exactness, EveryCodePairTimesAPowerOfTwoIsExactInBf16) {
  for (uint8_t code = 0; code < 16; ++code) {
    for (uint8_t sf = 0; sf <= kE4m3MaxCode; ++sf) {
      for (int exponent = -100; exponent <= 116; exponent += 6) {
        const float value = nvfp4_value(code, sf, std::ldexp(1.0F, exponent));
        ASSERT_EQ(to_float(to_bf16(value)), value) << int{code} << ' ' << int{sf};
      }
    }
  }
}

TEST(Exactness, AnArbitraryGlobalScaleIsNotExactInBf16) {
  const float value = nvfp4_value(7, 0x7E, global_scale_arbitrary(3.0F));
  EXPECT_NE(to_float(to_bf16(nvfp4_value(5, 0x5B, global_scale_arbitrary(3.3F)))),
            nvfp4_value(5, 0x5B, global_scale_arbitrary(3.3F)));
  EXPECT_NEAR(value, 3.0F, 1e-6F);
}

}  // namespace
}  // namespace quads
