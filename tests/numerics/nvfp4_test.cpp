// The NVFP4 quantiser: the written test vectors, ties, and faults seen in other implementations.
#include "numerics/nvfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/test_data.h"

namespace quads {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float up(float x) { return std::nextafter(x, kInf); }
float down(float x) { return std::nextafter(x, -kInf); }

std::vector<float> padded(std::vector<float> head, float filler, std::vector<float> tail = {}) {
  head.resize(16 - tail.size(), filler);
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

struct Vector {
  const char* name;
  std::vector<float> x;
  uint8_t sf;
  std::string codes;
  std::vector<float> values;
};

std::vector<Vector> unit_scale_vectors() {
  return {
      {"ties",
       {.25, .75, 1.25, 1.75, 2.5, 3.5, 5, 6, -.25, -.75, -1.25, -1.75, -2.5, -3.5, -5, -0.F},
       0x38,
       "0224 4667 8AAC CEE8",
       {0, 1, 1, 2, 2, 4, 4, 6, -0.F, -1, -1, -2, -2, -4, -4, -0.F}},
      {"one unit beside the ties, in FP32",
       {up(.25F), down(.75F), up(1.25F), down(1.75F), up(2.5F), down(3.5F), up(5.F), 6, down(.25F),
        up(.75F), down(1.25F), up(1.75F), down(2.5F), up(3.5F), down(5.F), -6},
       0x38,
       "1133 5577 0224 466F",
       {.5, .5, 1.5, 1.5, 3, 3, 6, 6, 0, 1, 1, 2, 2, 4, 4, -6}},
      {"the largest block scale",
       {2688, 448, 224, 112, 111, 1, -1, .5, -2688, -1344, -672, -1120, -560, -2240, 1568, 0},
       0x7E,
       "7210 0080 FDBC AE60",
       {2688, 448, 224, 0, 0, 0, -0.F, 0, -2688, -1344, -672, -896, -448, -1792, 1792, 0}},
      {"beyond a stale global scale", padded({5376, 2688, -2688, 4000}, 100), 0x7E,
       "77F7 0000 0000 0000", padded({2688, 2688, -2688, 2688}, 0)},
      {"the smallest block scale", padded({.015F, .0117F, -.006F, .003F}, .001F, {-.0001F}), 0x01,
       "77D3 1111 1111 1118",
       padded({.01171875, .01171875, -.005859375, .0029296875}, .0009765625, {-0.F})},
      {"block scale tie down", padded({6.375}, 1, {-3}), 0x38, "7222 2222 2222 222D",
       padded({6}, 1, {-3})},
      {"block scale tie up", padded({7.125}, 1, {-3}), 0x3A, "7222 2222 2222 222C",
       padded({7.5}, 1.25, {-2.5})},
      {"all zero", padded({}, 0), 0x00, "0000 0000 0000 0000", padded({}, 0)},
  };
}

TEST(Nvfp4, WrittenTestVectorsGiveTheirScalesCodesAndValues) {
  for (const Vector& v : unit_scale_vectors()) {
    const QuantisedRow row = quantise_row(v.x, 1.0F, v.name);
    EXPECT_EQ(row.block_scales, std::vector<uint8_t>{v.sf}) << v.name;
    EXPECT_EQ(row.codes, hex_codes(v.codes)) << v.name;
    ASSERT_EQ(row.values, v.values) << v.name;
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(std::signbit(row.values[i]), std::signbit(v.values[i])) << v.name << ' ' << i;
    }
  }
}

TEST(Nvfp4, TheVectorOfNeighboursWouldDifferIfRoundedToBf16First) {
  Vector v = unit_scale_vectors()[1];
  for (float& x : v.x) x = to_float(to_bf16(x));
  EXPECT_NE(quantise_row(v.x, 1.0F, v.name).codes, hex_codes(v.codes));
}

TEST(Nvfp4, PackingPutsTheEvenElementIntoTheLowNibble) {
  const std::vector<uint8_t> codes = hex_codes("0224 4667 8AAC CEE8");
  const std::vector<uint8_t> packed = {0x20, 0x42, 0x64, 0x76, 0xA8, 0xCA, 0xEC, 0x8E};
  EXPECT_EQ(pack_nibbles(codes), packed);
  EXPECT_EQ(unpack_nibbles(packed), codes);
}

TEST(Nvfp4, GlobalScaleIsThePowerOfTwoAbove) {
  EXPECT_EQ(global_scale_pow2(2688.0F), 1.0F);
  EXPECT_EQ(global_scale_pow2(up(2688.0F)), 2.0F);
  EXPECT_EQ(global_scale_pow2(1344.0F), 0.5F);
  EXPECT_EQ(global_scale_pow2(6.0F), 0x1p-8F);
  EXPECT_EQ(global_scale_pow2(0.0F), 1.0F);
  EXPECT_EQ(global_scale_pow2(1e-38F), 0x1p-100F);
}

TEST(Nvfp4, ArbitraryGlobalScaleMultipliesAndIsNeverZeroOrInfinite) {
  EXPECT_EQ(global_scale_arbitrary(2688.0F), 1.0F);
  EXPECT_EQ(global_scale_arbitrary(3.0F), 3.0F / 2688.0F);
  EXPECT_EQ(global_scale_arbitrary(0.0F), 1.0F);
  EXPECT_EQ(global_scale_arbitrary(std::bit_cast<float>(1U)), kMinScale);
  EXPECT_NE(error_of([] { global_scale_arbitrary(kInf); }), "");
}

// The FP32 quotient of the definition rounds as the exact quotient would.
TEST(Nvfp4, BlockScaleTiesAreExactForEveryPairOfNeighbouringScales) {
  for (uint8_t below = 0; below < kE4m3MaxCode; ++below) {
    const float tie = 3.0F * (e4m3_decode(below) + e4m3_decode(below + 1));
    for (const float g : {0x1p-100F, 1.0F, 0x1p60F}) {
      EXPECT_EQ(block_scale(down(tie * g), g), below);
      EXPECT_EQ(block_scale(tie * g, g), below + below % 2);
      EXPECT_EQ(block_scale(up(tie * g), g), below + 1);
    }
  }
}

TEST(Nvfp4, CodesAreNearestUnderThePublishedScaleNotTheUnroundedOne) {
  const std::vector<float> x = spread_bf16(1, 64 * 16, 4);
  const float g = global_scale_pow2(checked_amax(x, 1, 1024, "x"));
  const QuantisedRow row = quantise_row(x, g, "x");
  for (int i = 0; i < 1024; ++i) {
    const double scale = static_cast<double>(e4m3_decode(row.block_scales[i / 16])) * g;
    double best = kInf;
    for (uint8_t code = 0; code < 16; ++code) {
      best = std::min(best, std::fabs(x[i] - e2m1_decode(code) * scale));
    }
    ASSERT_EQ(std::fabs(x[i] - static_cast<double>(row.values[i])), best) << i;
  }
}

TEST(Nvfp4, AnArbitraryGlobalScaleUsesOneProductAndOneDivision) {
  const std::vector<float> x = spread_bf16(2, 64 * 16, 4);
  const float g = global_scale_arbitrary(checked_amax(x, 1, 1024, "x"));
  const QuantisedRow row = quantise_row(x, g, "x");
  for (int i = 0; i < 1024; ++i) {
    const float scale = e4m3_decode(row.block_scales[i / 16]) * g;
    ASSERT_EQ(row.codes[i], e2m1_encode(x[i] / scale));
    ASSERT_EQ(row.values[i], e2m1_decode(row.codes[i]) * scale);
  }
}

TEST(Nvfp4, AZeroTensorAndAZeroBlockGiveNoNan) {
  EXPECT_EQ(fake_quantise_nvfp4(std::vector<float>(64), 2, 32, "x"), std::vector<float>(64));
  std::vector<float> x(32);
  x[3] = 1e4F;  // the block beside it is zero
  const QuantisedRow row = quantise_activation_row(x, "x");
  EXPECT_EQ(row.block_scales[1], 0);
  for (const float value : row.values) EXPECT_TRUE(std::isfinite(value));
  const QuantisedRow zero = quantise_activation_row(std::vector<float>(16), "x");
  EXPECT_EQ(zero.global_scale, 1.0F);
  EXPECT_EQ(zero.values, std::vector<float>(16));
}

TEST(Nvfp4, ABlockTooSmallForItsScaleBecomesPositiveZeros) {
  std::vector<float> x(32, -1e-6F);
  x[0] = 2688.0F;
  const QuantisedRow row = quantise_row(x, 1.0F, "x");
  EXPECT_EQ(row.block_scales[1], 0);
  for (int i = 16; i < 32; ++i) EXPECT_EQ(row.codes[i], 0);
}

TEST(Nvfp4, GateAndUpUnderOneGlobalScaleEqualTheFusedMatrix) {
  std::vector<float> gate = spread_bf16(3, 4 * 32, 3);
  const std::vector<float> up_proj = spread_bf16(4, 4 * 32, 3);
  for (float& value : gate) value *= 64.0F;
  std::vector<float> fused = gate;
  fused.insert(fused.end(), up_proj.begin(), up_proj.end());
  const float g = global_scale_pow2(
      std::max(checked_amax(gate, 4, 32, "gate"), checked_amax(up_proj, 4, 32, "up")));
  EXPECT_EQ(g, global_scale_pow2(checked_amax(fused, 8, 32, "gate_up")));
  Nvfp4Matrix joined = quantise_nvfp4(gate, 4, 32, g, "gate");
  const Nvfp4Matrix second = quantise_nvfp4(up_proj, 4, 32, g, "up");
  joined.packed.insert(joined.packed.end(), second.packed.begin(), second.packed.end());
  joined.block_scales.insert(joined.block_scales.end(), second.block_scales.begin(),
                             second.block_scales.end());
  const Nvfp4Matrix whole = quantise_nvfp4(fused, 8, 32, g, "gate_up");
  EXPECT_EQ(joined.packed, whole.packed);
  EXPECT_EQ(joined.block_scales, whole.block_scales);
}

TEST(Nvfp4, FakeQuantisedValuesAreExactInBf16AndEqualThePackedMatrix) {
  const std::vector<float> x = spread_bf16(5, 8 * 48, 12);
  const std::vector<float> once = fake_quantise_nvfp4(x, 8, 48, "x");
  for (const float value : once) ASSERT_EQ(to_float(to_bf16(value)), value);
  EXPECT_EQ(once.size(), x.size());
  EXPECT_NE(once, x);
  const Nvfp4Matrix matrix =
      quantise_nvfp4(x, 8, 48, global_scale_pow2(checked_amax(x, 8, 48, "x")), "x");
  EXPECT_EQ(matrix.packed.size(), 8U * 24);
  EXPECT_EQ(matrix.block_scales.size(), 8U * 3);
  EXPECT_EQ(dequantise_nvfp4(matrix, "x"), once);
}

TEST(Nvfp4, ScalingTheInputByAPowerOfTwoScalesTheOutput) {
  const std::vector<float> x = spread_bf16(6, 32, 4);
  const QuantisedRow reference = quantise_activation_row(x, "x");
  for (const int exponent : {-80, -20, 1, 100}) {
    std::vector<float> scaled = x;
    for (float& value : scaled) value = std::ldexp(value, exponent);
    const QuantisedRow row = quantise_activation_row(scaled, "x");
    EXPECT_EQ(row.codes, reference.codes);
    EXPECT_EQ(row.block_scales, reference.block_scales);
    EXPECT_EQ(row.global_scale, std::ldexp(reference.global_scale, exponent));
  }
}

TEST(Nvfp4, EmptyAndSingleBlockShapesWork) {
  EXPECT_TRUE(dequantise_nvfp4(quantise_nvfp4({}, 0, 16, 1.0F, "w"), "w").empty());
  EXPECT_TRUE(dequantise_nvfp4(quantise_nvfp4({}, 5, 0, 1.0F, "w"), "w").empty());
  EXPECT_TRUE(quantise_activation_row({}, "x").codes.empty());
  EXPECT_EQ(fake_quantise_nvfp4(std::vector<float>(16, 3.0F), 1, 16, "w"),
            std::vector<float>(16, 3.0F));
}

TEST(Nvfp4, ValuesNearTheTopOfBf16EitherFitOrAreNamed) {
  const float bf16_max = to_float(Bf16{0x7F7F});
  std::vector<float> x(2 * 16, 1.0F);
  x[17] = -bf16_max;  // its block scale rounds up to 352, and 6 * 352 * 2^117 > 2^128
  const std::string error = error_of([&] { fake_quantise_nvfp4(x, 2, 16, "down_proj"); });
  EXPECT_TRUE(contains(error, "down_proj: row 1, column 1 is -3.38953")) << error;
  EXPECT_TRUE(contains(error, "BF16")) << error;
  x[17] = -0.98F * bf16_max;
  for (const float value : fake_quantise_nvfp4(x, 2, 16, "w")) EXPECT_TRUE(std::isfinite(value));
}

TEST(Nvfp4, TinyValuesStayExactOrBecomeZero) {
  const std::vector<float> x(16, 6 * 0x1p-105F);
  const QuantisedRow row = quantise_activation_row(x, "x");
  EXPECT_EQ(row.global_scale, kMinScale);
  EXPECT_EQ(row.values, x);
  const QuantisedRow subnormal = quantise_activation_row(std::vector<float>(16, 1e-42F), "x");
  EXPECT_EQ(subnormal.values, std::vector<float>(16, 0.0F));
}

TEST(Nvfp4, NonFiniteInputIsNamedAndNeverEncoded) {
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(3 * 32, 1.0F);
    x[2 * 32 + 17] = bad;
    const std::string error = error_of([&] { quantise_nvfp4(x, 3, 32, 1.0F, "layers.0.up_proj"); });
    EXPECT_TRUE(contains(error, "layers.0.up_proj: row 2, column 17 is")) << error;
    EXPECT_NE(error_of([&] { fake_quantise_nvfp4(x, 3, 32, "w"); }), "");
    const std::string row_error =
        error_of([&] { quantise_activation_row(std::span(x).subspan(64), "activations", 511); });
    EXPECT_TRUE(contains(row_error, "activations: row 511, column 17")) << row_error;
  }
}

TEST(Nvfp4, WrongShapesAndGlobalScalesAreRefused) {
  const std::vector<float> x(40, 1.0F);
  EXPECT_TRUE(contains(error_of([&] { quantise_nvfp4(x, 1, 40, 1.0F, "w"); }), "multiple of 16"));
  EXPECT_NE(error_of([&] { quantise_nvfp4(x, 2, 16, 1.0F, "w"); }), "");
  for (const float g : {0.0F, -1.0F, kInf, std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> row(16, 1.0F);
    EXPECT_TRUE(contains(error_of([&] { quantise_row(row, g, "w"); }), "global scale")) << g;
  }
}

TEST(Nvfp4, DequantisingRefusesBadScalesAndSizes) {
  Nvfp4Matrix matrix = quantise_nvfp4(std::vector<float>(64, 1.0F), 2, 32, 1.0F, "w");
  for (const uint8_t bad : {0x7F, 0x80, 0xB8, 0xFF}) {
    Nvfp4Matrix broken = matrix;
    broken.block_scales[3] = bad;
    const std::string error = error_of([&] { dequantise_nvfp4(broken, "w"); });
    EXPECT_TRUE(contains(error, "w: row 1, block 1")) << error;
  }
  matrix.packed.pop_back();
  EXPECT_NE(error_of([&] { dequantise_nvfp4(matrix, "w"); }), "");
}

}  // namespace
}  // namespace quads
