// Sampling: greedy, temperature, top-k, top-p, and the inversion of the cumulative distribution.
#include <fmt/format.h>

#include <numeric>

#include "kernels/rows_reference.h"
#include "kernels/testing.h"

namespace quads::kernels {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kAlmostOne = 1.0F - 0x1p-24F;

// The weight of every token after top-k and top-p, by sorting.
std::vector<float> reference_weights(const std::vector<float>& z, const SamplingParams& params) {
  const float inv_temperature = 1.0F / params.temperature;
  const float m = largest_of(z) * inv_temperature;
  std::vector<float> e(z.size());
  for (size_t i = 0; i < z.size(); ++i) e[i] = exp_f32(z[i] * inv_temperature - m);
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(z.size())) {
    auto sorted = z;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (size_t i = 0; i < z.size(); ++i) {
      if (z[i] < sorted[params.top_k - 1]) e[i] = 0.0F;
    }
  }
  if (params.top_p < 1.0F) {
    std::vector<size_t> order(z.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return e[a] > e[b]; });
    const double total = std::accumulate(e.begin(), e.end(), 0.0);
    double kept = 0.0;
    for (size_t rank = 0; rank < order.size(); ++rank) {
      if (rank > 0 && kept >= params.top_p * total) e[order[rank]] = 0.0F;
      kept += e[order[rank]];
    }
  }
  return e;
}

class Sample : public EachIsa {
 protected:
  int32_t draw(const std::vector<float>& z, const SamplingParams& params, float uniform) {
    return kernels().rows.sample(z.data(), static_cast<int64_t>(z.size()), params, uniform, arena_);
  }
  // Draws with every uniform (j + 1/2) / draws and counts.
  std::vector<int64_t> counts(const std::vector<float>& z, const SamplingParams& params,
                              int64_t draws) {
    std::vector<int64_t> out(z.size(), 0);
    int32_t last = 0;
    for (int64_t j = 0; j < draws; ++j) {
      const int32_t token =
          draw(z, params, (static_cast<float>(j) + 0.5F) / static_cast<float>(draws));
      EXPECT_GE(token, last) << "not in vocabulary order";
      last = token;
      ++out[token];
    }
    return out;
  }

 private:
  Arena arena_;
};
QUADS_INSTANTIATE_EACH_ISA(Sample);

TEST_P(Sample, DrawsEveryTokenWithItsProbability) {
  constexpr int64_t kDraws = 512;
  const SamplingParams all[] = {{1.0F, 0, 1.0F}, {0.6F, 0, 1.0F},    {1.5F, 5, 1.0F},
                                {1.0F, 0, 0.8F}, {1.0F, 0, 0.05F},   {0.9F, 7, 0.9F},
                                {1.0F, 1, 1.0F}, {1.0F, 1000, 1.0F}, {1.0F, -1, 0.999F}};
  for (const int64_t n : {1, 15, 16, 17, 33, 300, 700}) {
    const auto z = normal_f32(n, 500 + n, 2.0F);
    for (const SamplingParams& params : all) {
      const auto weights = reference_weights(z, params);
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      const auto seen = counts(z, params, kDraws);
      for (int64_t i = 0; i < n; ++i) {
        // A stretch of the unit interval holds its length's share of the grid, one more or less.
        EXPECT_NEAR(seen[i], weights[i] / total * kDraws, 1.01) << n << ", token " << i;
        if (weights[i] == 0.0F) {
          EXPECT_EQ(seen[i], 0) << n << ", token " << i;
        }
      }
    }
  }
}

TEST_P(Sample, GreedyTakesTheFirstMaximum) {
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  EXPECT_EQ(draw({0.0F, 3.0F, 1.0F, 3.0F}, greedy, 0.9F), 1);
  EXPECT_EQ(draw(std::vector<float>(50, -2.0F), greedy, 0.9F), 0);
  std::vector<float> z(100, -kInf);
  z[97] = -1e30F;
  EXPECT_EQ(draw(z, greedy, 0.0F), 97);
  z[3] = std::nanf("");
  EXPECT_EQ(draw(z, greedy, 0.0F), 97);
}

TEST_P(Sample, TheEndsOfTheUnitIntervalGiveTokensOfPositiveProbability) {
  std::vector<float> z(600, -kInf);
  z[37] = 0.5F;
  z[300] = 0.25F;
  z[301] = -200.0F;  // its weight is 0 in FP32
  for (const float top_p : {1.0F, 0.95F}) {
    const SamplingParams params{1.0F, 0, top_p};
    EXPECT_EQ(draw(z, params, 0.0F), 37);
    EXPECT_EQ(draw(z, params, kAlmostOne), 300);
  }
  const std::vector<float> equal(513, 7.0F);
  EXPECT_EQ(draw(equal, {}, 0.0F), 0);
  EXPECT_EQ(draw(equal, {}, kAlmostOne), 512);
}

TEST_P(Sample, AVeryUnlikelyLastTokenIsReachedOnlyAtTheEnd) {
  std::vector<float> z(40, 0.0F);
  z[39] = -80.0F;
  EXPECT_NE(draw(z, {}, 0.99999F), 39);
  EXPECT_LE(draw(z, {}, kAlmostOne), 39);
}

TEST_P(Sample, TopKKeepsAllTiesAtTheThreshold) {
  const std::vector<float> z = {1.0F, 2.0F, 1.0F, 0.0F, 1.0F};
  const auto seen = counts(z, {1.0F, 2, 1.0F}, 512);
  EXPECT_GT(seen[0], 0);
  EXPECT_GT(seen[2], 0);
  EXPECT_GT(seen[4], 0);
  EXPECT_EQ(seen[3], 0);
}

TEST_P(Sample, TopKOfNegativeLogitsAndZeros) {
  EXPECT_EQ(counts({-5.0F, -1.0F, -3.0F, -2.0F}, {1.0F, 2, 1.0F}, 64)[0], 0);
  const auto seen = counts({-0.0F, 0.0F, -1.0F, -2.0F}, {1.0F, 1, 1.0F}, 64);
  EXPECT_EQ(seen[0] + seen[1], 64);
}

TEST_P(Sample, TopPBreaksTiesByTheLowerIndexAndKeepsAtLeastOne) {
  const std::vector<float> z(8, 1.0F);
  EXPECT_EQ(counts(z, {1.0F, 0, 0.5F}, 64), (std::vector<int64_t>{16, 16, 16, 16, 0, 0, 0, 0}));
  EXPECT_EQ(counts(z, {1.0F, 0, 0.0F}, 64)[0], 64);
  const std::vector<float> peaked = {0.0F, 20.0F, 1.0F};
  EXPECT_EQ(counts(peaked, {1.0F, 0, 1e-9F}, 64)[1], 64);
}

TEST_P(Sample, TopPCountsTheMassThatTopKLeaves) {
  // Probabilities .4 .3 .2 .1; of the two kept, .4 / .7 = .57 covers top_p = .55.
  const std::vector<float> z = {std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)};
  EXPECT_EQ(counts(z, {1.0F, 2, 0.55F}, 64)[1], 64);
  EXPECT_GT(counts(z, {1.0F, 0, 0.55F}, 64)[3], 0);
}

TEST_P(Sample, WithoutAUsableDistributionTheFirstMaximumIsTaken) {
  EXPECT_EQ(draw(std::vector<float>(20, -kInf), {}, 0.5F), 0);
  EXPECT_EQ(draw(std::vector<float>(20, std::nanf("")), {}, 0.5F), 0);
  std::vector<float> z(20, 0.0F);
  z[9] = 4.0F;
  z[3] = std::nanf("");
  for (const SamplingParams& params : {SamplingParams{}, {1.0F, 3, 1.0F}, {1.0F, 0, 0.9F}}) {
    EXPECT_EQ(draw(z, params, 0.5F), 9);
  }
  z[3] = 0.0F;
  z[12] = kInf;
  EXPECT_EQ(draw(z, {}, 0.5F), 12);
}

TEST_P(Sample, EqualsTheGoldenFile) {
  std::map<std::string, uint64_t> hashes;
  for (const int64_t n : {32, 4001}) {
    const auto z = normal_f32(n, 600 + n, 3.0F);
    for (const SamplingParams& params :
         {SamplingParams{}, {0.7F, 20, 1.0F}, {1.0F, 0, 0.9F}, {1.3F, 50, 0.95F}}) {
      Fill fill(n);
      std::vector<int32_t> tokens;
      for (int j = 0; j < 64; ++j) tokens.push_back(draw(z, params, fill.uniform(0.0F, 1.0F)));
      hashes[fmt::format("n{}_k{}_p{}", n, params.top_k, static_cast<int>(params.top_p * 100.0F))] =
          bits_hash(tokens.data(), 64);
    }
  }
  expect_golden("sample", hashes);
}

}  // namespace
}  // namespace quads::kernels
