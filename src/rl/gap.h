// The gap: how far the trainer's log-probs of a rollout's tokens are from the rollout's own.
#pragma once

#include <cstdint>
#include <span>

namespace quads {

/// With delta = log pi_rollout - log pi_train per token. All 0 (and ess 1) when every pair is
/// equal, and for no tokens.
struct GapMetrics {
  int64_t num_tokens = 0;
  double max = 0;    // of |delta|
  double mean = 0;   // of |delta|
  double p99 = 0;    // of |delta|: the ceil(0.99 n)-th smallest
  double kl_k3 = 0;  // mean of w - 1 - log w, w = pi_train / pi_rollout: KL(pi_rollout || pi_train)
  double ess = 1;    // (sum w)^2 / (n sum w^2), in (0, 1]
};

/// rollout_logprobs, train_logprobs: [num_tokens], the response tokens only, both of the same
/// weights. log w is clamped to +-20 in kl_k3 and ess; max, mean and p99 are of delta as it is.
/// Errors: sizes that differ, a non-finite value (naming array and token).
GapMetrics gap_metrics(std::span<const float> rollout_logprobs,
                       std::span<const float> train_logprobs);

}  // namespace quads
