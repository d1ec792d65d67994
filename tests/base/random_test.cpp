// Counter-based random numbers against the published vectors of Philox.
#include "base/random.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace quads {
namespace {

using Words = std::array<uint32_t, 4>;

// Random123's kat_vectors, philox4x32 10 rounds.
TEST(Philox, GivesThePublishedVectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomWords, DifferInEveryPartOfTheKey) {
  std::set<Words> seen;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{1} << 32}) {
    for (const RandomStream stream : {RandomStream::kSampling, RandomStream::kInit}) {
      for (const uint64_t a : {uint64_t{1}, uint64_t{1} << 32}) {
        for (const uint32_t b : {0U, 1U}) {
          for (const uint32_t c : {0U, 1U}) seen.insert(random_words(seed, stream, a, b, c));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 32U);
}

TEST(Uniform, CoversZeroToBelowOne) {
  EXPECT_EQ(uniform_from_bits(0), 0.0F);
  EXPECT_EQ(uniform_from_bits(0xFFFFFFFFU), 1.0F - 0x1p-24F);
}

TEST(RandomSequence, StaysBelowItsBoundAndReachesAllOfIt) {
  RandomSequence sequence(7, RandomStream::kTask, 3);
  std::vector<int> counts(5, 0);
  for (int i = 0; i < 5000; ++i) ++counts.at(sequence.below(5));
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
  EXPECT_EQ(sequence.below(1), 0U);
}

}  // namespace
}  // namespace quads
