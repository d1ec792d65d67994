// The policy loss of GRPO, DAPO, Dr.GRPO and GSPO with its gradient in the trainer's log-probs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/corrections.h"
#include "rl/names.h"

namespace quads {

/// The ratio that is clipped: pi / pi_old of the token (PPO, GRPO), or its geometric mean over the
/// sequence (GSPO, Zheng et al., arXiv 2507.18071, eq. 7).
enum class RatioLevel { kToken, kSequence };

/// How the tokens' losses become one number; N and T are the sequences and tokens of the whole
/// global mini-batch.
enum class LossAggregation {
  kTokenMean,     // sum / T: DAPO
  kSequenceMean,  // sum over sequences of (sum / length) / N: GRPO, GSPO
  kConstant,      // sum / (N * max_response_length): Dr.GRPO (as TRL's loss_type "dr_grpo")
};

/// Per-token estimators of KL(pi || pi_ref), d = log pi - log pi_ref, with slime's names
/// (compute_approx_kl; http://joschu.net/blog/kl-approx.html).
enum class KlEstimator {
  /// d. Its gradient is that of log pi, whose expectation over pi is 0: as a loss term it adds
  /// noise
  /// and pulls nowhere. For monitoring.
  kK1,
  /// d^2 / 2. Its expected gradient is that of the KL.
  kK2,
  /// exp(-d) - 1 + d. Unbiased and never negative; d is clamped to +-20.
  kK3,
  /// k3 clamped to at most 10 with gradient 0 beyond (verl's low_var_kl, slime's low_var_kl).
  kLowVariance,
};

template <>
inline constexpr std::array<std::pair<std::string_view, RatioLevel>, 2> kNames<RatioLevel>{
    {{"token", RatioLevel::kToken}, {"sequence", RatioLevel::kSequence}}};

template <>
inline constexpr std::array<std::pair<std::string_view, LossAggregation>, 3>
    kNames<LossAggregation>{{{"token-mean", LossAggregation::kTokenMean},
                             {"sequence-mean", LossAggregation::kSequenceMean},
                             {"constant", LossAggregation::kConstant}}};

template <>
inline constexpr std::array<std::pair<std::string_view, KlEstimator>, 4> kNames<KlEstimator>{
    {{"k1", KlEstimator::kK1},
     {"k2", KlEstimator::kK2},
     {"k3", KlEstimator::kK3},
     {"low_var_kl", KlEstimator::kLowVariance}}};

struct PolicyLossOptions {
  RatioLevel ratio_level = RatioLevel::kToken;
  /// The ratio is clipped to [1 - eps_clip, 1 + eps_clip_high]. GRPO .2/.2, DAPO .2/.28, GSPO
  /// 3e-4/4e-4.
  double eps_clip = 0.2;
  double eps_clip_high = 0.2;
  LossAggregation aggregation = LossAggregation::kSequenceMean;
  /// Only for kConstant: the longest response that may be sampled.
  int64_t max_response_length = 0;
  KlEstimator kl_estimator = KlEstimator::kK3;
  /// Weight of the KL to the reference; 0 leaves the term out and ref_logprobs unread.
  double kl_coef = 0.0;
  CorrectionOptions correction = {};
};

/// The response tokens of a micro-batch, sequence after sequence. All per-token arrays are
/// [num_tokens]; an array that is not needed may be empty.
struct PolicyBatch {
  std::span<const float> logprobs;          // by the trainer, now
  std::span<const float> old_logprobs;      // before the first update of this rollout
  std::span<const float> rollout_logprobs;  // by the rollout; only for a correction
  std::span<const float> ref_logprobs;      // by the reference; only for kl_coef > 0
  /// Exactly one of the two is set, unless there are no sequences.
  std::span<const float> sequence_advantages;  // [num_sequences]
  std::span<const float> token_advantages;
  std::span<const int32_t> sequence_offsets;  // [num_sequences + 1], from 0 to num_tokens
};

/// Size of the global mini-batch that the micro-batches are parts of. Given to each of them, so
/// that their losses and gradients add up to those of the whole. Tokens that a correction masks
/// count.
struct GlobalBatchSize {
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
};

/// Sums over tokens, so that the micro-batches of a step can be merged before the ratios are taken.
struct PolicyLossStats {
  int64_t num_tokens = 0;
  int64_t num_clipped = 0;
  int64_t num_truncated = 0;
  int64_t num_masked = 0;
  double ratio_sum = 0;
  double ratio_max = 0;
  double approx_kl_sum = 0;
  double ref_kl_sum = 0;
  double weight_sum = 0;
  double weight_square_sum = 0;

  void merge(const PolicyLossStats& other);

  // Per token, 0 for no tokens.
  double clip_fraction() const;       // the clipped branch was the larger loss
  double truncated_fraction() const;  // by TIS
  double masked_fraction() const;     // by MIS or IcePop
  double ratio_mean() const;          // pi / pi_old, at the ratio level
  double approx_kl() const;           // k3 estimate of KL(pi_old || pi)
  double ref_kl() const;              // the chosen estimate of KL(pi || pi_ref)
  double weight_mean() const;         // the correction's weights as applied
  /// Effective sample size of those weights, (sum w)^2 / (n sum w^2), in [0, 1]; 1 for no tokens.
  double effective_sample_size() const;
};

struct PolicyLoss {
  double loss = 0;  // policy_loss + kl_coef * kl_loss
  double policy_loss = 0;
  double kl_loss = 0;
  std::vector<float> grad;  // [num_tokens]: d loss / d logprobs
  PolicyLossStats stats;
};

/// Per token -w min(r A, clip(r) A), r = exp(logprobs - old_logprobs) at the ratio level and w the
/// correction's weight, plus kl_coef times the KL, aggregated. PPO's clipped objective (Schulman et
/// al., arXiv 1707.06347, eq. 7) with DAPO's separate upper bound; no dual clip.
///
/// With RatioLevel::kSequence the gradient is that of the sequence's ratio, so each of its tokens
/// gets the mean of what the tokens' losses ask for (slime's compute_gspo_kl; equal to verl's
/// stop-gradient form when advantage and weight are constant over the sequence).
///
/// log r is clamped to +-20 with gradient 0 beyond, as in verl. Sums run in double in token order
/// and depend on no libm, so the loss has the same bits on every machine. No tokens: loss 0.
/// Errors: sizes that do not fit, non-finite inputs (naming array and token), options out of range,
/// a global size below the micro-batch's.
PolicyLoss policy_loss(const PolicyBatch& batch, const GlobalBatchSize& global,
                       const PolicyLossOptions& options);

}  // namespace quads
