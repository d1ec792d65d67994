// Sampling with the FP32 reference.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "eval/generator.h"

namespace quads {
namespace {

ModelConfig tiny_config() {
  ModelConfig c;
  c.vocab_size = 11;
  c.hidden_size = 32;
  c.intermediate_size = 32;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.head_dim = 16;
  c.max_position_embeddings = 64;
  c.moe_intermediate_size = 32;
  c.num_experts = 4;
  c.num_experts_per_tok = 2;
  c.initializer_range = 0.3;
  return c;
}

class ReferenceGeneratorTest : public testing::Test {
 protected:
  ReferenceGeneratorTest() : parameters_(tiny_config()) {
    parameters_.initialise(2);
    options_.max_new_tokens = 8;
    options_.stop_tokens = {5};
    options_.seed = 9;
    requests_ = {{.prompt_index = 0, .prompt = {1, 2, 3}, .n_samples = 6},
                 {.prompt_index = 5, .prompt = {4}, .n_samples = 3, .first_sample = 2}};
  }
  std::vector<Sample> generate(int threads) {
    kernels::CpuRuntime runtime(kernels::best_isa(), threads);
    return ReferenceGenerator(runtime, parameters_, 11).generate(requests_, options_);
  }

  Parameters parameters_;
  GenerateOptions options_;
  std::vector<Request> requests_;
};

TEST_F(ReferenceGeneratorTest, ThreadsDoNotChangeSamples) {
  const auto one = generate(1), two = generate(2);
  ASSERT_EQ(one.size(), 9);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].response, two[i].response);
    EXPECT_EQ(one[i].logprobs, two[i].logprobs);
  }
  EXPECT_EQ(one[8].prompt_index, 5);
  EXPECT_EQ(one[8].sample_index, 4);
}

TEST_F(ReferenceGeneratorTest, ScoringGivesTheLogProbsOfSampling) {
  options_.sampling.temperature = .7F;
  const auto samples = generate(1);
  kernels::CpuRuntime runtime(kernels::best_isa(), 1);
  const auto scored = ReferenceGenerator(runtime, parameters_, 11).score(samples, .7F);
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].logprobs, scored[i]);
}

TEST_F(ReferenceGeneratorTest, DrawsAreThoseOfTheEngineWhereRoundingDoesNotMatter) {
  // BF16 moves log-probs by some hundredths here, so nearly all draws fall on the same token.
  const auto reference = generate(1);
  kernels::CpuRuntime runtime(kernels::best_isa(), 1);
  CpuGenerator engine(runtime, parameters_, {.max_context = 11}, requests_, options_);
  const auto samples = engine.generate(requests_, options_);
  int same = 0;
  for (size_t i = 0; i < samples.size(); ++i) same += samples[i].response == reference[i].response;
  EXPECT_GE(same, 6);
}

TEST_F(ReferenceGeneratorTest, StopsAtAStopTokenOrTheLimit) {
  for (const Sample& sample : generate(1)) {
    const bool stopped = sample.response.back() == 5;
    EXPECT_EQ(sample.finish, stopped ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_TRUE(stopped || sample.response.size() == 8);
    EXPECT_EQ(sample.response.size(), sample.logprobs.size());
  }
}

TEST_F(ReferenceGeneratorTest, CancellingLeavesUnfinishedSamplesMarked) {
  std::atomic<bool> cancel{false};
  options_.cancel = &cancel;
  options_.stop_tokens = {};
  int tokens = 0;
  options_.on_token = [&](int64_t, int32_t, int32_t, float) { cancel = ++tokens == 10; };
  const auto samples = generate(1);
  EXPECT_EQ(samples[0].finish, FinishReason::kLength);
  EXPECT_EQ(samples[1].finish, FinishReason::kCancelled);
  EXPECT_EQ(samples[1].response.size(), 2);
  EXPECT_EQ(samples[2].response.size(), 0);
}

TEST_F(ReferenceGeneratorTest, BadRequestsAreErrors) {
  requests_[0].prompt = {1, 99};
  EXPECT_THROW(generate(1), Error);
  requests_[0].prompt = std::vector<int32_t>(10, 1);
  EXPECT_THROW(generate(1), Error);
  requests_[0].prompt = {1};
  options_.record_routing = true;
  EXPECT_THROW(generate(1), Error);
}

TEST(CpuGenerator, CompensationSelectsItsShareOfChannels) {
  Parameters parameters(tiny_config());
  parameters.initialise(2);
  kernels::CpuRuntime runtime(kernels::best_isa(), 1);
  GenerateOptions options;
  options.max_new_tokens = 4;
  const std::vector<Request> requests = {{.prompt = {1, 2, 3}}};
  for (const double ratio : {.25, 1.0}) {
    const CpuGenerator generator(
        runtime, parameters,
        {.precision = {Format::kNvfp4, Format::kNvfp4, {.ratio = ratio}}, .max_context = 8},
        requests, options);
    const std::vector<uint8_t>& mask = generator.masks().at(0, Site::kFfnIn);
    EXPECT_EQ(std::count(mask.begin(), mask.end(), 1), 32 * ratio);
  }
}

}  // namespace
}  // namespace quads
