// What a rollout is: the samples, with everything a trainer needs to replay them to the bit.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/precision.h"

namespace quads {

enum class FinishReason : uint8_t { kStop, kLength, kCancelled };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"

/// One response to one prompt.
struct Sample {
  int64_t prompt_index = 0;  // global index of the prompt: part of the random key
  int32_t sample_index = 0;  // among the samples of the prompt
  std::vector<int32_t> prompt;
  std::vector<int32_t> response;
  std::vector<float> logprobs;  // of the response's tokens, over the whole vocabulary, at T
  /// On request: experts of every position fed (prompt and all but the last response token),
  /// [positions][layers][top_k]; -1 in dense layers.
  std::vector<int32_t> routing;
  FinishReason finish = FinishReason::kLength;
};

struct Rollout {
  std::vector<Sample> samples;  // by prompt, then by sample index
  int64_t policy_version = 0;   // of the weights that made it
  RacMasks masks;               // under which it was made
  /// Residual sums over generated positions, [layers * kSites]; empty where nothing is quantised.
  std::vector<std::vector<int64_t>> residual_sums;
};

}  // namespace quads
