// What the engine is asked for: prompts, how to sample, and what to gather beside the samples.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/random.h"
#include "io/model_config.h"
#include "kernels/cpu/row_kernels.h"
#include "model/residual_sums.h"
#include "rollout/rollout.h"

namespace quads {

/// n_samples responses to a prompt, with sample indices from first_sample on. (prompt_index, sample
/// index) is part of the random key, so it says which response is drawn, whatever the request.
struct Request {
  int64_t prompt_index = 0;
  std::vector<int32_t> prompt;
  int32_t n_samples = 1;
  int32_t first_sample = 0;
};

struct GenerateOptions {
  kernels::SamplingParams sampling;
  uint64_t seed = 0;
  int64_t max_new_tokens = 0;
  /// A response ends with the first of these, which is its last token.
  std::vector<int32_t> stop_tokens;
  bool record_routing = false;
  /// Residuals of the generated positions that are fed are added here, each (prompt, sample,
  /// position) once; null: not gathered.
  ResidualSums* residual_sums = nullptr;
  /// Called from the thread that generates; a sample's tokens come in order.
  std::function<void(int64_t prompt_index, int32_t sample_index, int32_t token, float logprob)>
      on_token;
  std::function<void(const Sample&)> on_finished;
  /// Once true, what is unfinished is returned as it is, kCancelled. Looked at before every step.
  const std::atomic<bool>* cancel = nullptr;
};

/// What bounds a request.
struct RequestLimits {
  int64_t max_context;  // positions: prompt and response
  int64_t kv_pages;
};

/// Error, naming the prompt, on: an empty prompt, a token outside the vocabulary, fewer than one
/// sample, a negative index, a prompt that with its response can never fit, a sample asked for
/// twice, sampling parameters out of range.
void check_requests(std::span<const Request> requests, const GenerateOptions& options,
                    const ModelConfig& config, const RequestLimits& limits);

/// Error, naming prompt and position, unless all tokens are ids of the vocabulary; `what` they are:
/// "prompt" or "response".
void check_tokens(std::span<const int32_t> tokens, int64_t vocab, const char* what,
                  int64_t prompt_index);

/// The uniform number with which the token at `position` (counted from the prompt's start) is
/// drawn.
inline float sampling_uniform(uint64_t seed, int64_t prompt_index, int32_t sample_index,
                              int64_t position) {
  return uniform_from_bits(
      random_words(seed, RandomStream::kSampling, static_cast<uint64_t>(prompt_index),
                   static_cast<uint32_t>(sample_index), static_cast<uint32_t>(position))[0]);
}

/// Least temperature that the commands take, greedy's 0 apart: far above those that divide logits
/// to infinity.
inline constexpr double kLeastTemperature = 1e-3;

/// Log-probabilities are those at the sampling temperature; greedy ones are at 1.
inline float logprob_inv_temperature(float temperature) {
  return temperature == 0.0F ? 1.0F : 1.0F / temperature;
}

}  // namespace quads
