// Requests that cannot be served are errors that name the prompt, before anything runs.
#include <limits>

#include "rollout/testing.h"

namespace quads {
namespace {

using namespace quads::testing;

class Hostile : public ::testing::Test {
 protected:
  std::string generate_error(const std::vector<Request>& requests) {
    return error_of([&] { engine.generate(requests, options); });
  }
  TestModel m;
  Engine engine{m.backend, {.max_context = 64, .kv_pages = 3}};
  GenerateOptions options = make_options();
};

TEST_F(Hostile, AnEmptyPrompt) {
  EXPECT_MENTIONS(generate_error({{7, {1, 2}, 1, 0}, {8, {}, 1, 0}}), "prompt 8 is empty");
}

TEST_F(Hostile, ATokenOutsideTheVocabulary) {
  const std::string above = generate_error({{7, {1, 2, 29}, 1, 0}});
  EXPECT_MENTIONS(above, "prompt 7: token 29 at position 2");
  EXPECT_MENTIONS(above, "vocabulary of 29");
  EXPECT_MENTIONS(generate_error({{7, {-1}, 1, 0}}), "token -1 at position 0");
}

TEST_F(Hostile, APromptLongerThanTheContext) {
  const std::string message = generate_error({{7, std::vector<int32_t>(45, 1), 1, 0}});
  EXPECT_MENTIONS(message, "prompt 7");
  EXPECT_MENTIONS(message, "45 tokens and up to 20 new ones");
  EXPECT_MENTIONS(message, "context of 64");
  options.max_new_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_MENTIONS(generate_error({{7, {1}, 1, 0}}), "context of 64");
}

TEST_F(Hostile, ASequenceOfMorePagesThanThereAre) {
  // 30 + 19 positions are fed: 4 pages of 16.
  const std::string message = generate_error({{7, std::vector<int32_t>(30, 1), 1, 0}});
  EXPECT_MENTIONS(message, "prompt 7");
  EXPECT_MENTIONS(message, "need 4 key-value pages, there are 3");
  EXPECT_EQ(engine.generate({{{7, std::vector<int32_t>(29, 1), 1, 0}}}, options).size(), 1U);
}

TEST_F(Hostile, CountsAndIndicesOutOfRange) {
  EXPECT_MENTIONS(generate_error({{7, {1}, 0, 0}}), "prompt 7: 0 samples");
  EXPECT_MENTIONS(generate_error({{-1, {1}, 1, 0}}), "prompt index -1");
  EXPECT_MENTIONS(generate_error({{7, {1}, 1, -1}}), "first sample index -1");
  EXPECT_MENTIONS(generate_error({{7, {1}, 2, std::numeric_limits<int32_t>::max() - 1}}),
                  "out of range");
}

TEST_F(Hostile, ASampleAskedForTwice) {
  EXPECT_MENTIONS(generate_error({{7, {1}, 3, 0}, {8, {1}, 3, 0}, {7, {1}, 1, 2}}),
                  "prompt 7: sample 2 is asked for twice");
}

TEST_F(Hostile, SamplingParametersOutOfRange) {
  const std::vector<Request> requests = {{7, {1}, 1, 0}};
  const auto error_with = [&](const kernels::SamplingParams& sampling) {
    options.sampling = sampling;
    return generate_error(requests);
  };
  EXPECT_MENTIONS(error_with({.temperature = -1.0F}), "temperature is -1");
  EXPECT_MENTIONS(error_with({.temperature = std::numeric_limits<float>::quiet_NaN()}),
                  "temperature is nan");
  EXPECT_MENTIONS(error_with({.top_k = -2}), "top_k is -2");
  EXPECT_MENTIONS(error_with({.top_p = 0.0F}), "top_p is 0");
  EXPECT_MENTIONS(error_with({.top_p = 1.5F}), "top_p is 1.5");
}

TEST_F(Hostile, EngineBoundsOutOfRange) {
  const auto error_with = [&](const Engine::Options& bounds) {
    return error_of([&] { Engine(m.backend, bounds); });
  };
  EXPECT_MENTIONS(error_with({.max_running = 0}), "max_running is 0");
  EXPECT_MENTIONS(error_with({.max_context = 0}), "max_context is 0");
  EXPECT_MENTIONS(error_with({.prefill_chunk = 0}), "prefill_chunk is 0");
  EXPECT_MENTIONS(error_with({.kv_pages = -1}), "kv_pages is -1");
  EXPECT_MENTIONS(error_with({.kv_memory_bytes = 100}), "100 bytes");
}

TEST_F(Hostile, ScoringWhatDoesNotFit) {
  const auto error_with = [&](std::vector<int32_t> prompt, std::vector<int32_t> response) {
    Sample sample;
    sample.prompt_index = 4;
    sample.prompt = std::move(prompt);
    sample.response = std::move(response);
    return error_of([&] { engine.score({&sample, 1}, 1.0F); });
  };
  EXPECT_MENTIONS(error_with({}, {1}), "prompt 4 is empty");
  EXPECT_MENTIONS(error_with({1}, {1, 77}), "prompt 4: token 77 at position 1 of the response");
  EXPECT_MENTIONS(error_with({1}, std::vector<int32_t>(48, 1)),
                  "49 tokens exceed the context of 48");
}

TEST_F(Hostile, AnErrorLeavesTheEngineUsable) {
  const std::vector<Request> requests = {{7, {1, 2, 3}, 2, 0}};
  const std::vector<Sample> expected = engine.generate(requests, options);
  GenerateOptions throwing = options;
  throwing.on_token = [](int64_t, int32_t, int32_t, float) { throw Error("the caller's"); };
  EXPECT_EQ(error_of([&] { engine.generate(requests, throwing); }), "the caller's");
  expect_same(expected, engine.generate(requests, options), "after an error");
}

TEST_F(Hostile, ActivationsThatAreNotFinite) {
  // Finite weights whose products overflow.
  const ParameterLayout& layout = m.parameters.layout();
  const Parameter& head = layout.at(layout.head);
  for (int64_t i = 0; i < head.size(); ++i) {
    m.parameters.values()[head.offset + i] = to_bf16(i % 2 == 0 ? 3e38F : -3e38F);
  }
  m.model.refresh(m.runtime.context(), {});
  const std::string message = generate_error({{7, {1, 2, 3}, 1, 0}});
  EXPECT_MENTIONS(message, "prompt 7, sample 0");
  EXPECT_MENTIONS(message, "position 3");
}

}  // namespace
}  // namespace quads
