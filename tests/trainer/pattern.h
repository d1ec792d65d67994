// What trainers learn in tests: t -> 3 t + 1 mod 41 from any start, so that what follows can be
// read off the last token.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "trainer/trainer.h"

namespace quads::testing {

/// The tokens as sequences with a prompt of one.
inline std::vector<TrainSequence> whole(const std::vector<std::vector<int32_t>>& tokens) {
  std::vector<TrainSequence> sequences;
  for (const std::vector<int32_t>& t : tokens) {
    sequences.push_back({.tokens = t, .prompt_length = 1, .routing = {}});
  }
  return sequences;
}

/// The loss of every step, each of 16 new sequences of 12 tokens.
inline std::vector<double> learn_pattern(Trainer& trainer, int steps) {
  std::vector<double> losses;
  std::vector<std::vector<int32_t>> tokens(16);
  for (int step = 0; step < steps; ++step) {
    for (size_t s = 0; s < tokens.size(); ++s) {
      RandomSequence random(2, RandomStream::kTask, static_cast<uint64_t>(step) * 16 + s);
      tokens[s] = {static_cast<int32_t>(random.below(41))};
      while (tokens[s].size() < 12) tokens[s].push_back((3 * tokens[s].back() + 1) % 41);
    }
    double loss = 0.0;
    trainer.accumulate(whole(tokens), [&](const MicroBatch& micro, std::span<float> dlogp) {
      constexpr float kTargets = 16 * 11;
      for (const float logp : micro.logprobs) loss -= logp / kTargets;
      std::ranges::fill(dlogp, -1.0F / kTargets);
    });
    EXPECT_TRUE(trainer.update(3e-3F).applied);
    losses.push_back(loss);
  }
  return losses;
}

}  // namespace quads::testing
