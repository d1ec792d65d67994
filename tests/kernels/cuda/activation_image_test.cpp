// Places in the image of activations: each is one row's alone, and a tile's stage is contiguous.
#include "kernels/cuda/experts/activation_image.h"

#include <gtest/gtest.h>

#include <vector>

namespace quads::kernels::cuda {
namespace {

TEST(ActivationImage, EveryChunkHasAPlaceOfItsOwnWithinTheBound) {
  const std::vector<int> counts = {3, 0, 17, 8, 1};
  for (const int stages : {1, 3}) {
    const int64_t size = image_elements(29, 5, stages);
    std::vector<int> taken(size / 8, 0);
    int base = 0;
    for (const int count : counts) {
      const int padded = (count + 7) / 8 * 8;
      for (int i = 0; i < count; ++i) {
        for (int stage = 0; stage < stages; ++stage) {
          for (int chunk = 0; chunk < 16; ++chunk) {
            const int64_t at = image_offset({base, padded, i, 0}, stages, stage, chunk);
            ASSERT_EQ(at % 8, 0);
            ASSERT_GE(at, 0);
            ASSERT_LT(at, size);
            ++taken[at / 8];
          }
        }
      }
      base += padded;
    }
    for (const int t : taken) EXPECT_LE(t, 1);
  }
}

TEST(ActivationImage, AStageOfAnExpertsRowsIsContiguous) {
  const ImageRow first{16, 24, 8, 0};
  const ImageRow last{16, 24, 23, 0};
  // Of rows 8..23, stage 2 of 4 begins with row 8's chunk 0 and ends within 16 rows x 128.
  const int64_t begin = image_offset(first, 4, 2, 0);
  EXPECT_EQ(begin, 16 * 4 * 128 + 2 * 24 * 128 + 1024);
  for (int chunk = 0; chunk < 16; ++chunk) {
    const int64_t at = image_offset(last, 4, 2, chunk);
    EXPECT_GE(at, begin);
    EXPECT_LT(at, begin + 16 * 128);
  }
}

TEST(ActivationImage, ChunksAreSwizzledWithinTheirLine) {
  const ImageRow row{0, 8, 5, 0};
  EXPECT_EQ(image_offset(row, 1, 0, 0), 5 * 64 + 5 * 8);
  EXPECT_EQ(image_offset(row, 1, 0, 5), 5 * 64);
  EXPECT_EQ(image_offset(row, 1, 0, 8 + 2), 512 + 5 * 64 + 7 * 8);
}

TEST(ActivationImage, TheBoundHoldsForTheWorstRouting) {
  EXPECT_EQ(padded_rows_bound(0, 8), 0);
  EXPECT_EQ(padded_rows_bound(1, 8), 8);
  EXPECT_EQ(padded_rows_bound(8, 8), 64);     // one each
  EXPECT_EQ(padded_rows_bound(9, 8), 8 * 8);  // 2 and seven ones
  EXPECT_EQ(padded_rows_bound(100, 1), 104);
}

}  // namespace
}  // namespace quads::kernels::cuda
