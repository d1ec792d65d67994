// The layout: offsets against the tiles as the documentation draws them, paddings, augmented K.
#include "kernels/native_fp4/layout.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "kernels/native_fp4/augmented_k.h"
#include "kernels/native_fp4/route.h"

namespace quads::kernels::native_fp4 {
namespace {

TEST(NativeFp4Layout, ScalesOfATileLieInFourColumnsOf32Rows) {
  EXPECT_EQ(scale_offset(0, 0, 8), 0);
  EXPECT_EQ(scale_offset(0, 3, 8), 3);
  EXPECT_EQ(scale_offset(32, 0, 8), 4);
  EXPECT_EQ(scale_offset(96, 1, 8), 13);
  EXPECT_EQ(scale_offset(1, 0, 8), 16);
  EXPECT_EQ(scale_offset(127, 3, 8), 511);
  EXPECT_EQ(scale_offset(0, 4, 8), 512);
  EXPECT_EQ(scale_offset(128, 0, 8), 1024);
}

TEST(NativeFp4Layout, EveryScaleHasAByteOfItsOwn) {
  constexpr int64_t kRows = 384, kColumns = 12;
  std::set<int64_t> seen;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t block = 0; block < kColumns; ++block) {
      const int64_t at = scale_offset(row, block, kColumns);
      EXPECT_TRUE(at >= 0 && at < kRows * kColumns);
      seen.insert(at);
    }
  }
  EXPECT_EQ(std::ssize(seen), kRows * kColumns);
}

TEST(NativeFp4Layout, TheBoundOfScaleRowsHoldsForTheWorstSplit) {
  EXPECT_EQ(scale_rows_bound(0, 4), 0);
  EXPECT_EQ(scale_rows_bound(1, 4), 128);
  EXPECT_EQ(scale_rows_bound(3, 4), 384);            // 1 + 1 + 1
  EXPECT_EQ(scale_rows_bound(5, 2), 256);            // 4 + 1
  EXPECT_EQ(scale_rows_bound(128 * 3 + 2, 2), 640);  // 129 + 257
  EXPECT_EQ(scale_rows_bound(256, 1), 256);
}

TEST(NativeFp4Layout, CompensatedBlocksFollowTheChannels) {
  std::vector<uint8_t> mask(80, 0);
  mask[16 + 3] = mask[64] = mask[79] = 1;
  const AugmentedK k = augment(80, mask);
  EXPECT_EQ(k.selected, (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(k.place, (std::vector<int32_t>{-1, 0, -1, -1, 1}));
  EXPECT_EQ(k.augmented, 128);  // 7 blocks, and one of zeros
  EXPECT_EQ(augment(80, {}).augmented, 96);
  EXPECT_EQ(augment(64, {}).augmented, 64);
  EXPECT_THROW(augment(24, {}), Error);
  EXPECT_THROW(augment(0, {}), Error);
  EXPECT_THROW(augment(96, mask), Error);
}

TEST(NativeFp4Route, IsChosenByComputeCapability) {
  EXPECT_EQ(choose_route(10, 0), Route::kGrouped);
  EXPECT_EQ(choose_route(10, 3), Route::kGrouped);
  EXPECT_EQ(choose_route(12, 0), Route::kPerGroup);
  try {
    choose_route(9, 0);
    FAIL() << "9.0 has no FP4 units";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("compute capability 9.0"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace quads::kernels::native_fp4
