// The gap between rollout and trainer, taken apart along a chain of engines that score the same
// tokens.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace quads {

/// Log-probabilities of the same tokens under one stage of the chain.
struct Stage {
  std::string name;
  std::vector<float> logprobs;
};

/// The signed difference between two stages, per token: first minus second.
struct Delta {
  std::string name;
  std::vector<double> values;
};

/// What a difference amounts to. `share` is that of the whole gap: sum of delta * gap / sum of
/// gap^2, which adds up to 1 over the parts of the chain (a regression's shares; 0 if there is no
/// gap).
struct DeltaSummary {
  std::string name;
  double max = 0;    // of |delta|
  double mean = 0;   // of |delta|
  double p99 = 0;    // of |delta|: the ceil(0.99 n)-th smallest
  double bias = 0;   // mean of delta
  double kl_k3 = 0;  // mean of w - 1 - log w, log w = -delta
  double share = 0;
};

/// The differences of neighbouring stages, named `names` [stages - 1], and last the whole gap,
/// first stage minus last. Log-probabilities are rounded to multiples of 2^-40 first, so that in
/// double the parts add up to the whole exactly, token by token. Errors: stages of different
/// lengths, a value that is not finite, naming stage and token.
std::vector<Delta> differences(std::span<const Stage> stages,
                               const std::vector<std::string>& names);

/// `gap` is the whole that `delta` is a part of.
DeltaSummary summarize_delta(const Delta& delta, const Delta& gap);

}  // namespace quads
