// Residual compensation: the written test vectors, exactness, statistics and selection.
#include "numerics/rac.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "numerics/e4m3.h"
#include "numerics/test_data.h"

namespace quads {
namespace {

const std::vector<float> kX = {1,        -.3125,    .71875, 2.25,  -1.125, 0,     3.5,    -5,
                               .1015625, -.0703125, 1.5625, -2.75, 4.4375, .4375, -.8125, 6};

std::vector<float> sum(const CompensatedRow& row) {
  std::vector<float> total(row.main.values.size());
  for (size_t i = 0; i < total.size(); ++i) {
    total[i] = row.main.values[i] + row.correction.values[i];
  }
  return total;
}

int significand_bits(float x) {
  if (x == 0.0F) return 0;
  const uint32_t significand = (std::bit_cast<uint32_t>(x) & 0x7FFFFFU) | 0x800000U;
  return 24 - std::countr_zero(significand);
}

TEST(Rac, EveryChannelSelected) {
  const CompensatedRow row = compensate_row(kX, 0x1p-8F, std::vector<uint8_t>(16, 1), false, "x");
  EXPECT_EQ(row.main.block_scales, std::vector<uint8_t>{0x78});
  EXPECT_EQ(row.main.codes, hex_codes("2914 A06E 083D 61A7"));
  EXPECT_EQ(row.correction.block_scales, std::vector<uint8_t>{0x63});
  EXPECT_EQ(row.correction.codes, hex_codes("0233 90DF 1913 5920"));
  EXPECT_EQ(sum(row), (std::vector<float>{1, -.328125, .7578125, 2.2578125, -1.0859375, 0, 3.484375,
                                          -5.03125, .0859375, -.0859375, 1.5859375, -2.7421875,
                                          4.515625, .4140625, -.828125, 6}));
}

TEST(Rac, OddChannelsSelected) {
  std::vector<uint8_t> mask(16);
  for (int i = 1; i < 16; i += 2) mask[i] = 1;
  const CompensatedRow row = compensate_row(kX, 0x1p-8F, mask, false, "x");
  EXPECT_EQ(row.main.codes, hex_codes("2914 A06E 083D 61A7"));
  EXPECT_EQ(row.correction.block_scales, std::vector<uint8_t>{0x63});
  EXPECT_EQ(row.correction.codes, hex_codes("0203 000F 0903 0900"));
  EXPECT_EQ(sum(row), (std::vector<float>{1, -.328125, .5, 2.2578125, -1, 0, 4, -5.03125, 0,
                                          -.0859375, 1.5, -2.7421875, 4, .4140625, -1, 6}));
}

TEST(Rac, FirstOfTwoBlocksSelected) {
  std::vector<float> x = kX;
  for (const float value : kX) x.push_back(value / 8);
  std::vector<uint8_t> mask(32);
  std::fill_n(mask.begin(), 16, uint8_t{1});
  const CompensatedRow row = compensate_row(x, 0x1p-8F, mask, false, "x");
  EXPECT_EQ(row.main.block_scales, (std::vector<uint8_t>{0x78, 0x60}));
  EXPECT_EQ(row.main.codes, hex_codes("2914 A06E 083D 61A7 2914 A06E 083D 61A7"));
  EXPECT_EQ(row.correction.block_scales, (std::vector<uint8_t>{0x63, 0x00}));
  EXPECT_EQ(row.correction.codes, hex_codes("0233 90DF 1913 5920 0000 0000 0000 0000"));
  const std::vector<float> total = sum(row);
  EXPECT_EQ(std::vector<float>(total.begin() + 16, total.end()),
            (std::vector<float>{.125, -.0625, .0625, .25, -.125, 0, .5, -.5, 0, 0, .1875, -.375, .5,
                                .0625, -.125, .75}));
}

TEST(Rac, NoChannelSelectedLeavesTheMainPartAlone) {
  const CompensatedRow row = compensate_row(kX, 0x1p-8F, std::vector<uint8_t>(16), true, "x");
  EXPECT_EQ(row.correction.block_scales, std::vector<uint8_t>{0});
  EXPECT_EQ(row.correction.codes, std::vector<uint8_t>(16));
  EXPECT_EQ(sum(row), row.main.values);
}

TEST(Rac, TheMainPartEqualsTheRowQuantisedAlone) {
  const std::vector<float> x = spread_bf16(1, 256, 10);
  const QuantisedRow alone = quantise_activation_row(x, "x");
  const CompensatedRow row =
      compensate_row(x, alone.global_scale, std::vector<uint8_t>(256, 1), false, "x");
  EXPECT_EQ(row.main.codes, alone.codes);
  EXPECT_EQ(row.main.block_scales, alone.block_scales);
}

TEST(Rac, TheResidualOfABf16RowIsExactInBf16) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> x = spread_bf16(seed, 256, 20);
    const float g = quantise_activation_row(x, "x").global_scale;
    const CompensatedRow row = compensate_row(x, g, std::vector<uint8_t>(256, 1), false, "x");
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(to_float(to_bf16(row.residual[i])), row.residual[i]) << seed << ' ' << i;
      ASSERT_EQ(row.main.values[i] + row.residual[i], x[i]);
    }
  }
}

TEST(Rac, TheScaleFloorMakesTheSumFitElevenBits) {
  int widest_with = 0;
  int widest_without = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const std::vector<float> x = spread_bf16(seed, 256, 14);
    const float g = quantise_activation_row(x, "x").global_scale;
    const std::vector<uint8_t> mask(256, 1);
    for (const float value : sum(compensate_row(x, g, mask, true, "x"))) {
      widest_with = std::max(widest_with, significand_bits(value));
    }
    for (const float value : sum(compensate_row(x, g, mask, false, "x"))) {
      widest_without = std::max(widest_without, significand_bits(value));
    }
  }
  EXPECT_LE(widest_with, 11);
  EXPECT_GT(widest_without, 11);
}

TEST(Rac, TheScaleFloorIsAnEighthOfThePowerOfTwoBelowTheMainScale) {
  std::vector<float> x(16, 4.0F);
  x[0] = 6.0F;
  x[1] = 4.0F + 0x1p-5F;  // a residual far below s1 / 8
  const std::vector<uint8_t> mask(16, 1);
  const CompensatedRow row = compensate_row(x, 0x1p-8F, mask, true, "x");
  EXPECT_EQ(e4m3_decode(row.main.block_scales[0]), 256.0F);
  EXPECT_EQ(e4m3_decode(row.correction.block_scales[0]), 32.0F);
  EXPECT_LT(e4m3_decode(compensate_row(x, 0x1p-8F, mask, false, "x").correction.block_scales[0]),
            32.0F);
  x[1] = 5.0F;  // a residual above it is not touched
  EXPECT_EQ(compensate_row(x, 0x1p-8F, mask, true, "x").correction.block_scales,
            compensate_row(x, 0x1p-8F, mask, false, "x").correction.block_scales);
}

TEST(Rac, TheScaleFloorStaysAtTheSmallestScaleAndWhereNothingIsLeft) {
  const std::vector<uint8_t> mask(16, 1);
  std::vector<float> x(16, 6 * 0x1p-9F);
  x[1] = 5.75F * 0x1p-9F;
  const CompensatedRow tiny = compensate_row(x, 1.0F, mask, true, "x");
  EXPECT_EQ(tiny.main.block_scales[0], 0x01);
  EXPECT_EQ(tiny.correction.block_scales[0], 0x01);
  EXPECT_EQ(tiny.correction.codes, hex_codes("0800 0000 0000 0000"));
  const CompensatedRow exact = compensate_row(std::vector<float>(16, 6.0F), 1.0F, mask, true, "x");
  EXPECT_EQ(exact.correction.block_scales[0], 0);
}

TEST(Rac, WrongMasksScalesAndInputsAreRefused) {
  const std::vector<uint8_t> mask(16, 1);
  EXPECT_NE(error_of([&] { compensate_row(kX, 1.0F, std::vector<uint8_t>(15), false, "x"); }), "");
  EXPECT_TRUE(
      contains(error_of([&] { compensate_row(kX, 3.0F, mask, false, "x"); }), "power of two"));
  std::vector<float> x = kX;
  x[9] = std::numeric_limits<float>::quiet_NaN();
  const std::string error = error_of([&] { compensate_row(x, 1.0F, mask, false, "gate_up", 7); });
  EXPECT_TRUE(contains(error, "gate_up: row 7, column 9 is nan")) << error;
}

TEST(RacStatistics, UnitsAreSixteenFractionBitsOfTheScaledResidualTiesToEven) {
  EXPECT_EQ(residual_units(0.0F, 1.0F), 0);
  EXPECT_EQ(residual_units(-0x1p-8F, 0x1p-8F), 65536);
  EXPECT_EQ(residual_units(0.5F * 0x1p-16F, 1.0F), 0);
  EXPECT_EQ(residual_units(1.5F * 0x1p-16F, 1.0F), 2);
  EXPECT_EQ(residual_units(-2.5F * 0x1p-16F, 1.0F), 2);
  EXPECT_EQ(residual_units(0x1p-110F, 0x1p-100F), 64);
  EXPECT_NE(error_of([] { residual_units(std::numeric_limits<float>::max(), 1.0F); }), "");
  EXPECT_NE(error_of([] { residual_units(std::nanf(""), 1.0F); }), "");
}

TEST(RacSelection, TakesTheLargestSumsAndTheLowerIndexOfEquals) {
  const std::vector<int64_t> sums = {5, 9, 5, 1, 9, 5, 0, 5};
  using Mask = std::vector<uint8_t>;
  EXPECT_EQ(select_mask(sums, 0.5, RacGranularity::kChannel), (Mask{1, 1, 1, 0, 1, 0, 0, 0}));
  EXPECT_EQ(select_mask(sums, 0.0, RacGranularity::kChannel), Mask(8, 0));
  EXPECT_EQ(select_mask(sums, 1.0, RacGranularity::kChannel), Mask(8, 1));
  EXPECT_EQ(select_mask(std::vector<int64_t>(4), 0.5, RacGranularity::kChannel),
            (Mask{1, 1, 0, 0}));
}

TEST(RacSelection, RoundsTheNumberOfUnitsUpButNotForRoundingErrors) {
  const auto count = [](int64_t k, double ratio) {
    const auto mask = select_mask(std::vector<int64_t>(k), ratio, RacGranularity::kChannel);
    return std::count(mask.begin(), mask.end(), 1);
  };
  EXPECT_EQ(count(8, 0.125), 1);
  EXPECT_EQ(count(9, 0.125), 2);
  EXPECT_EQ(count(100, 0.07), 7);
  EXPECT_EQ(count(1000, 0.0001), 1);
  EXPECT_EQ(count(1, 0.01), 1);
  EXPECT_EQ(count(0, 0.5), 0);
}

TEST(RacSelection, BlocksAreSelectedByTheirSum) {
  std::vector<int64_t> sums(48, 1);
  sums[0] = 10;                               // block 0: 25
  for (int i = 32; i < 48; ++i) sums[i] = 2;  // block 2: 32
  const auto mask = select_mask(sums, 1.0 / 3, RacGranularity::kBlock);
  for (int i = 0; i < 48; ++i) EXPECT_EQ(mask[i], i >= 32 ? 1 : 0) << i;
  EXPECT_EQ(select_mask(sums, 1.0 / 48, RacGranularity::kChannel)[0], 1);
}

TEST(RacSelection, RefusesBadRatiosShapesAndSums) {
  const std::vector<int64_t> sums(24, 1);
  for (const double ratio : {-0.1, 1.1, std::nan("")}) {
    EXPECT_NE(error_of([&] { select_mask(sums, ratio, RacGranularity::kChannel); }), "") << ratio;
  }
  EXPECT_NE(error_of([&] { select_mask(sums, 0.5, RacGranularity::kBlock); }), "");
  EXPECT_NE(error_of([&] { select_mask(std::vector<int64_t>{-1}, 1, RacGranularity::kChannel); }),
            "");
  EXPECT_NE(
      error_of([&] { select_mask(std::vector<int64_t>{INT64_MAX}, 1, RacGranularity::kChannel); }),
      "");
}

TEST(RacSelection, CoveredShareIsTheMaskedPartOfTheSum) {
  const std::vector<int64_t> sums = {1, 3, 4, 0};
  EXPECT_EQ(covered_share(sums, std::vector<uint8_t>{0, 1, 0, 1}), 3.0 / 8.0);
  EXPECT_EQ(covered_share(sums, std::vector<uint8_t>(4, 1)), 1.0);
  EXPECT_EQ(covered_share(sums, std::vector<uint8_t>(4, 0)), 0.0);
  EXPECT_EQ(covered_share(std::vector<int64_t>(4), std::vector<uint8_t>(4, 0)), 1.0);
  EXPECT_NE(error_of([&] { covered_share(sums, std::vector<uint8_t>(3)); }), "");
}

}  // namespace
}  // namespace quads
