// Draws are keyed by (seed, prompt, sample, position), and truncation reaches the sampler but not
// the log-probabilities.
#include <algorithm>
#include <cmath>
#include <set>

#include "rollout/testing.h"

namespace quads {
namespace {

using namespace quads::testing;

class Sampling : public ::testing::Test {
 protected:
  TestModel m;
  Engine engine{m.backend, {.max_context = 64}};
  GenerateOptions options = make_options();
};

TEST_F(Sampling, GreedyTakesTheMostProbableTokenWithLogprobsAtTemperatureOne) {
  options.sampling.temperature = 0.0F;
  const std::vector<Sample> greedy = engine.generate(make_requests(2), options);
  for (size_t i = 0; i < greedy.size(); i += 2) {
    EXPECT_EQ(greedy[i].response, greedy[i + 1].response) << "greedy samples differ";
  }
  // No token has a larger log-probability at the first position.
  for (const Sample& s : greedy) {
    std::vector<Sample> others;
    for (int32_t token = 0; token < kVocab; ++token) {
      others.push_back(s);
      others.back().response = {token};
    }
    const std::vector<std::vector<float>> all = engine.score(others, 1.0F);
    double total = 0.0;
    for (const std::vector<float>& logprob : all) {
      EXPECT_LE(logprob[0], s.logprobs[0]);
      total += std::exp(static_cast<double>(logprob[0]));
    }
    EXPECT_NEAR(total, 1.0, 1e-5);
  }
}

TEST_F(Sampling, TemperatureReachesDrawsAndLogprobs) {
  const std::vector<Sample> at_one = engine.generate(make_requests(4), options);
  options.sampling.temperature = 0.5F;
  const std::vector<Sample> at_half = engine.generate(make_requests(4), options);
  const std::vector<std::vector<float>> scored = engine.score(at_half, 0.5F);
  const std::vector<std::vector<float>> scored_at_one = engine.score(at_half, 1.0F);
  bool drawn_otherwise = false, scored_otherwise = false;
  for (size_t i = 0; i < at_half.size(); ++i) {
    EXPECT_EQ(bits(scored[i]), bits(at_half[i].logprobs));
    drawn_otherwise |= at_one[i].response != at_half[i].response;
    scored_otherwise |= scored_at_one[i] != at_half[i].logprobs;
  }
  EXPECT_TRUE(drawn_otherwise);
  EXPECT_TRUE(scored_otherwise);
}

TEST_F(Sampling, TopKOfOneIsGreedyWithLogprobsOverTheWholeVocabulary) {
  options.sampling.temperature = 0.0F;
  const std::vector<Sample> greedy = engine.generate(make_requests(2), options);
  options.sampling = {.temperature = 1.0F, .top_k = 1};
  expect_same(greedy, engine.generate(make_requests(2), options), "top-k of 1");
  options.sampling = {.temperature = 1.0F, .top_p = 1e-6F};
  expect_same(greedy, engine.generate(make_requests(2), options), "a tiny top-p");
}

TEST_F(Sampling, TopKDrawsOnlyTheLargest) {
  options.sampling.top_k = 3;
  options.max_new_tokens = 1;
  std::vector<Request> requests = make_requests(64);
  std::set<int32_t> seen;
  requests.resize(1);
  for (const Sample& s : engine.generate(requests, options)) seen.insert(s.response[0]);
  EXPECT_LE(seen.size(), 3U);
  EXPECT_GE(seen.size(), 2U);
}

TEST_F(Sampling, SeedPromptIndexAndSampleIndexAreTheKey) {
  const std::vector<Sample> expected = engine.generate(make_requests(4), options);
  std::vector<Request> requests = make_requests(2);
  for (Request& r : requests) r.first_sample = 2;
  const std::vector<Sample> tail = engine.generate(requests, options);
  for (size_t i = 0; i < tail.size(); ++i) {
    expect_same(expected[i / 2 * 4 + 2 + i % 2], tail[i], "from the third sample on");
  }
  requests = make_requests(4);
  for (Request& r : requests) r.prompt_index += 1;
  std::vector<Sample> shifted = engine.generate(requests, options);
  options.seed += 1;
  const std::vector<Sample> reseeded = engine.generate(make_requests(4), options);
  int64_t same_shifted = 0, same_reseeded = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    same_shifted += expected[i].response == shifted[i].response;
    same_reseeded += expected[i].response == reseeded[i].response;
  }
  EXPECT_LT(same_shifted, 4);
  EXPECT_LT(same_reseeded, 4);
}

TEST_F(Sampling, DrawsFollowTheDistribution) {
  // 4,000 first tokens of one prompt against the model's own probabilities: chi-squared.
  options.max_new_tokens = 1;
  Request request = make_requests(4000)[0];
  const std::vector<Sample> samples = engine.generate({&request, 1}, options);
  std::vector<double> counts(kVocab, 0.0);
  for (const Sample& s : samples) ++counts[static_cast<size_t>(s.response[0])];
  std::vector<Sample> each;
  for (int32_t token = 0; token < kVocab; ++token) {
    each.push_back(samples[0]);
    each.back().response = {token};
  }
  const std::vector<std::vector<float>> logprobs = engine.score(each, 1.0F);
  double chi_squared = 0.0;
  int degrees = -1;
  double rest_expected = 0.0, rest_count = 0.0;
  const auto add = [&](double count, double expected) {
    chi_squared += (count - expected) * (count - expected) / expected;
    ++degrees;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = 4000 * std::exp(static_cast<double>(logprobs[i][0]));
    if (expected >= 10) {
      add(counts[i], expected);
    } else {
      rest_expected += expected;
      rest_count += counts[i];
    }
  }
  if (rest_expected >= 10) add(rest_count, rest_expected);
  ASSERT_GE(degrees, 2);
  // Mean `degrees`, variance 2 * degrees: five standard deviations.
  EXPECT_LT(chi_squared, degrees + 5 * std::sqrt(2.0 * degrees));
}

}  // namespace
}  // namespace quads
