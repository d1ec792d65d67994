// Tables of rotary position embedding against the C library.
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/testing.h"

namespace quads::kernels {
namespace {

TEST(RopeTable, AgreesWithTheLibrarysPowCosAndSin) {
  for (double theta : {1.0, 10000.0, 1e6, 1e7}) {
    for (int64_t head_dim : {2, 16, 32, 128, 256}) {
      RopeTable table(theta, head_dim);
      const int64_t half = head_dim / 2;
      const float* cos = table.cos(5000);
      const float* sin = table.sin(5000);
      for (int64_t position : {0, 1, 2, 47, 4999}) {
        for (int64_t i = 0; i < half; ++i) {
          const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
          const double angle = static_cast<double>(position) * std::pow(theta, -exponent);
          // Half a unit in the last place of FP32 in inv_freq, in the product and in the result.
          const double bound = angle * 0x1.01p-23 + 0x1p-25;
          EXPECT_NEAR(cos[position * half + i], std::cos(angle), bound);
          EXPECT_NEAR(sin[position * half + i], std::sin(angle), bound);
        }
      }
    }
  }
}

TEST(RopeTable, PositionZeroIsTheIdentity) {
  RopeTable table(1e6, 128);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(table.cos(1)[i], 1.0F);
    EXPECT_EQ(table.sin(1)[i], 0.0F);
  }
}

TEST(RopeTable, GrowsWithoutChangingWhatWasThere) {
  RopeTable once(10000.0, 32), grown(10000.0, 32);
  for (int64_t positions : {1, 2, 17, 40}) {
    grown.cos(positions);
    grown.sin(positions);
  }
  for (int64_t i = 0; i < 40 * 16; ++i) {
    EXPECT_EQ(grown.cos(40)[i], once.cos(40)[i]);
    EXPECT_EQ(grown.sin(40)[i], once.sin(40)[i]);
  }
  const float* before = grown.cos(40);
  EXPECT_EQ(grown.cos(3), before) << "fewer positions move nothing";
}

TEST(RopeTable, GivesTheBitsOfTheGoldenFile) {
  RopeTable small(10000.0, 32), large(1e6, 128);
  testing::expect_golden("rope", {{"cos-10000-32", testing::bits_hash(small.cos(64), 64 * 16)},
                                  {"sin-10000-32", testing::bits_hash(small.sin(64), 64 * 16)},
                                  {"cos-1e6-128", testing::bits_hash(large.cos(300), 300 * 64)},
                                  {"sin-1e6-128", testing::bits_hash(large.sin(300), 300 * 64)}});
}

TEST(RopeTable, RefusesBadShapes) {
  EXPECT_THROW(RopeTable(0.5, 32), Error);
  EXPECT_THROW(RopeTable(std::numeric_limits<double>::quiet_NaN(), 32), Error);
  EXPECT_THROW(RopeTable(std::numeric_limits<double>::infinity(), 32), Error);
  EXPECT_THROW(RopeTable(10000.0, 31), Error);
  EXPECT_THROW(RopeTable(10000.0, 0), Error);
  EXPECT_THROW(RopeTable(10000.0, 258), Error);
  EXPECT_THROW(RopeTable(10000.0, 2).cos(RopeTable::kMaxPositions + 1), Error);
}

}  // namespace
}  // namespace quads::kernels
