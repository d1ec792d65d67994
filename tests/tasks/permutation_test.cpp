// The computed random order: a permutation for every size, different for every key, well mixed.
#include "tasks/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "base/error.h"

namespace quads {
namespace {

TEST(Permutation, VisitsEveryElementOnceForAnySize) {
  for (const uint64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000, 4097}) {
    const Permutation order(size, 7, 0);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      ASSERT_LT(order(i), size);
      ASSERT_FALSE(seen[order(i)]);
      seen[order(i)] = true;
    }
  }
}

TEST(Permutation, DependsOnSeedAndIdAndOnNothingElse) {
  const auto prefix = [](uint64_t seed, uint32_t id) {
    const Permutation order(1000, seed, id);
    std::vector<uint64_t> values;
    for (uint64_t i = 0; i < 20; ++i) {
      values.push_back(order(i));
    }
    return values;
  };
  EXPECT_EQ(prefix(1, 0), prefix(1, 0));
  EXPECT_EQ((std::set{prefix(1, 0), prefix(2, 0), prefix(1, 1)}.size()), 3U);
}

TEST(Permutation, FirstElementIsSpreadOverAllValues) {
  constexpr int kDraws = 16'000;
  std::vector<int> counts(8);
  for (uint32_t id = 0; id < kDraws; ++id) {
    ++counts[Permutation(8, 3, id)(0)];
  }
  const double expected = kDraws / 8.0;
  for (const int count : counts) {
    EXPECT_NEAR(count, expected, 5 * std::sqrt(expected));
  }
}

TEST(Permutation, LargeSizesAndErrors) {
  const Permutation order(uint64_t{1} << 62, 1, 0);
  EXPECT_NE(order(0), order(1));
  EXPECT_THROW(Permutation(0, 1, 0), Error);
  EXPECT_THROW(Permutation(5, 1, 0)(5), Error);
}

}  // namespace
}  // namespace quads
