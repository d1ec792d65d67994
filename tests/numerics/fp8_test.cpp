// The FP8 quantiser: blocks, short ends, exactness, and scales of other tools' files.
#include "numerics/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "numerics/e4m3.h"
#include "numerics/test_data.h"

namespace quads {
namespace {

TEST(Fp8, ScaleIsTheSmallestPowerOfTwoThatCovers448) {
  EXPECT_EQ(fp8_scale_pow2(448.0F), 1.0F);
  EXPECT_EQ(fp8_scale_pow2(std::nextafter(448.0F, 1000.0F)), 2.0F);
  EXPECT_EQ(fp8_scale_pow2(1.75F), 0x1p-8F);
  EXPECT_EQ(fp8_scale_pow2(0.0F), 1.0F);
  EXPECT_EQ(fp8_scale_pow2(1e-38F), 0x1p-100F);
}

TEST(Fp8, EachBlockHasTheScaleOfItsOwnMaximum) {
  const int64_t rows = 129;
  const int64_t k = 200;  // blocks of 128 + 1 rows, 128 + 72 columns
  std::vector<float> x(rows * k, 0.5F);
  x[5 * k + 127] = 448.0F;
  x[127 * k + 128] = -900.0F;
  x[128 * k + 199] = 3.0F;
  const Fp8Matrix matrix = quantise_fp8(x, rows, k, 128, "w");
  EXPECT_EQ(matrix.scales, (std::vector<float>{1.0F, 4.0F, 0x1p-9F, 0x1p-7F}));
  const std::vector<float> values = dequantise_fp8(matrix, "w");
  EXPECT_EQ(values[5 * k + 127], 448.0F);
  EXPECT_EQ(values[127 * k + 128], -896.0F);
  EXPECT_EQ(values[128 * k + 199], 3.0F);
  EXPECT_EQ(values[0], 0.5F);
}

TEST(Fp8, ActivationGroupsDependOnTheirRowAlone) {
  const std::vector<float> x = spread_bf16(1, 3 * 300, 8);
  const Fp8Matrix matrix = quantise_fp8(x, 3, 300, 1, "x");
  EXPECT_EQ(matrix.scales.size(), 9U);
  const std::vector<float> values = dequantise_fp8(matrix, "x");
  for (int64_t row = 0; row < 3; ++row) {
    const Fp8Matrix alone = quantise_fp8(std::span(x).subspan(row * 300, 300), 1, 300, 1, "x");
    const std::vector<float> alone_values = dequantise_fp8(alone, "x");
    EXPECT_TRUE(std::equal(alone_values.begin(), alone_values.end(), values.begin() + row * 300));
  }
}

TEST(Fp8, ValuesAreExactInBf16AndNearestToTheInput) {
  const std::vector<float> x = spread_bf16(2, 130 * 130, 20);
  const Fp8Matrix matrix = quantise_fp8(x, 130, 130, 128, "w");
  const std::vector<float> values = dequantise_fp8(matrix, "w");
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(to_float(to_bf16(values[i])), values[i]);
    const size_t block = i / 130 / 128 * 2 + i % 130 / 128;
    ASSERT_LE(std::fabs(values[i] - x[i]),
              std::max(std::fabs(x[i]) / 16, matrix.scales[block] * 0x1p-10F));
  }
}

TEST(Fp8, ZerosEmptyAndSingleValuesWork) {
  EXPECT_EQ(dequantise_fp8(quantise_fp8(std::vector<float>(256), 2, 128, 128, "w"), "w"),
            std::vector<float>(256));
  EXPECT_TRUE(dequantise_fp8(quantise_fp8({}, 0, 128, 128, "w"), "w").empty());
  EXPECT_TRUE(dequantise_fp8(quantise_fp8({}, 3, 0, 1, "w"), "w").empty());
  EXPECT_EQ(dequantise_fp8(quantise_fp8(std::vector<float>{-3.5F}, 1, 1, 128, "w"), "w"),
            std::vector<float>{-3.5F});
}

TEST(Fp8, BadInputIsNamed) {
  std::vector<float> x(2 * 130, 1.0F);
  x[130 + 129] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(contains(error_of([&] { quantise_fp8(x, 2, 130, 1, "q_proj"); }),
                       "q_proj: row 1, column 129 is nan"));
  x[130 + 129] = to_float(Bf16{0x7F7F});  // 1.99 * 2^127 rounds to 2^128
  const std::string error = error_of([&] { quantise_fp8(x, 2, 130, 1, "q_proj"); });
  EXPECT_TRUE(contains(error, "q_proj: row 1, column 129")) << error;
  EXPECT_NE(error_of([&] { quantise_fp8(x, 2, 129, 1, "w"); }), "");
  EXPECT_NE(error_of([&] { quantise_fp8(x, 2, 130, 0, "w"); }), "");
}

TEST(Fp8, OtherToolsScalesAreMultipliedIn) {
  const Fp8Matrix matrix{1, 130, 128, std::vector<uint8_t>(130, 0x38), {0.3F, 0.7F}};
  const std::vector<float> values = dequantise_fp8(matrix, "w");
  EXPECT_EQ(values[127], 0.3F);
  EXPECT_EQ(values[128], 0.7F);
}

TEST(Fp8, BadFilesAreRefused) {
  const Fp8Matrix good{1, 130, 128, std::vector<uint8_t>(130, 0x38), {0.3F, 0.7F}};
  for (const float bad : {-1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Fp8Matrix matrix = good;
    matrix.scales[1] = bad;
    EXPECT_TRUE(contains(error_of([&] { dequantise_fp8(matrix, "w"); }), "w: scale [0, 1]")) << bad;
  }
  for (const uint8_t bad : {0x7F, 0xFF}) {
    Fp8Matrix matrix = good;
    matrix.codes[129] = bad;
    EXPECT_TRUE(contains(error_of([&] { dequantise_fp8(matrix, "w"); }), "w: row 0, column 129"));
  }
  Fp8Matrix short_scales = good;
  short_scales.scales.pop_back();
  EXPECT_NE(error_of([&] { dequantise_fp8(short_scales, "w"); }), "");
}

}  // namespace
}  // namespace quads
