// What the rollout tests share: a small random model whose samples vary, requests, and comparison
// of samples to the bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "rollout/cpu_backend.h"
#include "rollout/engine.h"
#include "rollout/rac_calibration.h"
#include "rollout/weight_sync.h"
#include "small_moe.h"

namespace quads::testing {

inline constexpr int64_t kVocab = 29;  // not a multiple of anything a kernel likes

/// Three layers, the middle one dense; weights large enough for peaked, varied distributions.
inline ModelConfig small_config() {
  ModelConfig c = small_moe();
  c.vocab_size = kVocab;
  c.num_hidden_layers = 3;
  c.num_experts = 8;
  c.mlp_only_layers = {1};
  c.initializer_range = 0.3;
  return c;
}

/// Weights, their packed form, and the threads to run them.
struct TestModel {
  explicit TestModel(const Precision& precision = {}, const QuantizeScope& scope = {},
                     int threads = 1, kernels::Isa isa = kernels::best_isa(),
                     const ModelConfig& config = small_config())
      : runtime(isa, threads),
        parameters(config),
        model(parameters, {.precision = precision, .scope = scope}),
        backend(runtime, model) {
    parameters.initialise(7);
    if (precision.rac.ratio > 0) masks = arbitrary_masks();
    model.refresh(runtime.context(), masks);
  }

  /// Masks of the precision's ratio, by sums that differ from channel to channel.
  RacMasks arbitrary_masks() const {
    std::vector<std::vector<int64_t>> sums = ResidualSums(model.sites(), 1).totals();
    RandomSequence draws(3, RandomStream::kInit, 0);
    for (std::vector<int64_t>& site : sums) {
      for (int64_t& sum : site) sum = draws.below(1000);
    }
    return select_masks(sums, model.precision().rac);
  }

  kernels::CpuRuntime runtime;
  Parameters parameters;
  PackedModel model;
  CpuBackend backend;
  RacMasks masks;
};

/// Prompts of 1..40 tokens, `samples` each: shorter than, equal to and longer than KV pages.
inline std::vector<Request> make_requests(int32_t samples) {
  std::vector<Request> requests;
  RandomSequence draws(11, RandomStream::kTask, 0);
  for (const int64_t length : {5, 16, 1, 33, 17, 40}) {
    Request r;
    r.prompt_index = 100 + std::ssize(requests);
    r.n_samples = samples;
    for (int64_t i = 0; i < length; ++i) {
      r.prompt.push_back(static_cast<int32_t>(draws.below(kVocab)));
    }
    requests.push_back(std::move(r));
  }
  return requests;
}

/// Up to 20 new tokens; token 0 ends a response.
inline GenerateOptions make_options() {
  GenerateOptions options;
  options.seed = 5;
  options.max_new_tokens = 20;
  options.stop_tokens = {0};
  return options;
}

inline std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> out;
  for (float v : values) out.push_back(std::bit_cast<uint32_t>(v));
  return out;
}

inline void expect_same(const Sample& a, const Sample& b, const std::string& what) {
  const std::string where = what + ": prompt " + std::to_string(a.prompt_index) + ", sample " +
                            std::to_string(a.sample_index);
  EXPECT_EQ(a.prompt_index, b.prompt_index) << where;
  EXPECT_EQ(a.sample_index, b.sample_index) << where;
  EXPECT_EQ(a.prompt, b.prompt) << where;
  EXPECT_EQ(a.response, b.response) << where;
  EXPECT_EQ(bits(a.logprobs), bits(b.logprobs)) << where;
  EXPECT_EQ(a.routing, b.routing) << where;
  EXPECT_EQ(a.finish, b.finish) << where;
}

inline void expect_same(const std::vector<Sample>& a, const std::vector<Sample>& b,
                        const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) expect_same(a[i], b[i], what);
}

/// The message of the quads::Error that `body` throws; a failure if it throws none.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

#define EXPECT_MENTIONS(message, text) \
  EXPECT_NE((message).find(text), std::string::npos) << (message)

}  // namespace quads::testing
