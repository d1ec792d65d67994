// The parts of a gap add up to it exactly.
#include "diagnose/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"

namespace quads {
namespace {

using testing::HasSubstr;

// Log-probs from -100 to -1e-30, so that neighbouring ones differ by many orders of magnitude.
std::vector<float> wild_logprobs(uint64_t id, int count) {
  RandomSequence random(7, RandomStream::kTask, id);
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(-std::pow(10.0F, 32 * random.uniform() - 30));
  }
  return values;
}

TEST(Chain, PartsAddUpToTheGapExactlyWhateverTheirSizes) {
  const Stage stages[] = {{"a", wild_logprobs(1, 5000)},
                          {"b", wild_logprobs(2, 5000)},
                          {"c", wild_logprobs(3, 5000)},
                          {"d", wild_logprobs(4, 5000)}};
  const std::vector<Delta> deltas = differences(stages, {"ab", "bc", "cd"});
  ASSERT_EQ(deltas.size(), 4);
  for (size_t i = 0; i < 5000; ++i) {
    const double sum = deltas[0].values[i] + deltas[1].values[i] + deltas[2].values[i];
    ASSERT_EQ(sum, deltas[3].values[i]) << i;
    ASSERT_NEAR(deltas[3].values[i], double{stages[0].logprobs[i]} - stages[3].logprobs[i], 1e-12);
  }
}

TEST(Chain, EqualStagesDifferByExactlyZero) {
  const std::vector<float> same = wild_logprobs(1, 100);
  const Stage stages[] = {{"a", same}, {"b", same}};
  const std::vector<Delta> deltas = differences(stages, {"ab"});
  for (double d : deltas[0].values) EXPECT_EQ(d, 0);
}

TEST(Chain, SummaryIsWhatItIsByHand) {
  const Delta gap{"gap", {1.0, -2.0, 0.0, 1.0}};
  const Delta part{"part", {1.0, -1.0, 0.0, 0.0}};
  const DeltaSummary s = summarize_delta(part, gap);
  EXPECT_EQ(s.max, 1.0);
  EXPECT_EQ(s.mean, 0.5);
  EXPECT_EQ(s.bias, 0.0);
  EXPECT_EQ(s.p99, 1.0);
  EXPECT_DOUBLE_EQ(s.share, (1.0 + 2.0) / 6.0);
  EXPECT_NEAR(s.kl_k3, ((std::exp(-1.0) - 1 + 1) + (std::exp(1.0) - 1 - 1)) / 4, 1e-15);
}

TEST(Chain, P99LeavesOutTheLargestOfTwoHundred) {
  Delta delta{"d", std::vector<double>(200, 1.0)};
  delta.values[17] = -50;
  delta.values[18] = 3;
  EXPECT_EQ(summarize_delta(delta, delta).p99, 1.0);
  EXPECT_EQ(summarize_delta(delta, delta).max, 50.0);
}

TEST(Chain, SharesOfThePartsAddUpToOne) {
  const Stage stages[] = {
      {"a", wild_logprobs(1, 50)}, {"b", wild_logprobs(2, 50)}, {"c", wild_logprobs(3, 50)}};
  const std::vector<Delta> deltas = differences(stages, {"ab", "bc"});
  EXPECT_NEAR(
      summarize_delta(deltas[0], deltas[2]).share + summarize_delta(deltas[1], deltas[2]).share,
      1.0, 1e-12);
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Chain, NonFiniteLogProbIsAnErrorThatNamesStageAndToken) {
  const Stage stages[] = {{"rollout", {-1.0F, -2.0F}},
                          {"w4a16", {-1.0F, std::numeric_limits<float>::quiet_NaN()}}};
  const std::string error = error_of([&] { differences(stages, {"delta"}); });
  EXPECT_THAT(error, HasSubstr("stage w4a16"));
  EXPECT_THAT(error, HasSubstr("token 1"));
}

TEST(Chain, StagesOfDifferentLengthAreAnError) {
  const Stage stages[] = {{"a", {-1.0F}}, {"b", {}}};
  EXPECT_THAT(error_of([&] { differences(stages, {"ab"}); }), HasSubstr("has 1 tokens"));
}

TEST(Chain, NoTokensSummariseToZero) {
  const Delta empty{"gap", {}};
  EXPECT_EQ(summarize_delta(empty, empty).max, 0);
}

}  // namespace
}  // namespace quads
