#include "rl/policy_loss.h"

#include <algorithm>

#include "rl/checks.h"
#include "rl/portable_exp.h"

namespace quads {
namespace {

/// A loss of one token and its slope in the log-prob (or log-ratio) it is a function of.
struct Term {
  double value;
  double slope;
};

struct Surrogate {
  Term term;
  double ratio;
  bool clipped;
};

Surrogate clipped_surrogate(double log_ratio, double advantage, const PolicyLossOptions& options) {
  const double clamped = clamp_log_ratio(log_ratio);
  const double ratio = portable_exp(clamped);
  const double clipped_ratio =
      std::clamp(ratio, 1.0 - options.eps_clip, 1.0 + options.eps_clip_high);
  const double loss = -ratio * advantage;
  const double clipped_loss = -clipped_ratio * advantage;
  if (clipped_loss > loss) return {{clipped_loss, 0.0}, ratio, true};
  return {{loss, clamped == log_ratio ? loss : 0.0}, ratio, false};
}

Term kl_term(double logprob, double ref_logprob, KlEstimator estimator) {
  constexpr double kMaxLowVarianceKl = 10.0;
  const double difference = logprob - ref_logprob;
  switch (estimator) {
    case KlEstimator::kK1:
      return {difference, 1.0};
    case KlEstimator::kK2:
      return {0.5 * difference * difference, difference};
    case KlEstimator::kK3:
    case KlEstimator::kLowVariance:
      break;
  }
  const double clamped = clamp_log_ratio(difference);
  const double value = exp_minus_one_minus(-clamped);
  if (estimator == KlEstimator::kLowVariance && value > kMaxLowVarianceKl) {
    return {kMaxLowVarianceKl, 0.0};
  }
  return {value, clamped == difference ? 1.0 - portable_exp(-clamped) : 0.0};
}

void check_options(const PolicyLossOptions& options) {
  require(options.eps_clip >= 0 && options.eps_clip < 1, "--eps-clip is {}, expected 0 <= x < 1",
          options.eps_clip);
  require(options.eps_clip_high >= 0 && std::isfinite(options.eps_clip_high),
          "--eps-clip-high is {}, expected a finite value of at least 0", options.eps_clip_high);
  require(options.kl_coef >= 0 && std::isfinite(options.kl_coef),
          "--kl-loss-coef is {}, expected a finite value of at least 0", options.kl_coef);
  require(options.aggregation != LossAggregation::kConstant || options.max_response_length >= 1,
          "max_response_length is {}, expected at least 1 for the constant aggregation",
          options.max_response_length);
}

void check_batch(const PolicyBatch& batch, const GlobalBatchSize& global,
                 const PolicyLossOptions& options) {
  const size_t num_tokens = batch.logprobs.size();
  require_offsets(batch.sequence_offsets, num_tokens);
  const size_t num_sequences = batch.sequence_offsets.size() - 1;
  require(global.num_tokens >= static_cast<int64_t>(num_tokens) &&
              global.num_sequences >= static_cast<int64_t>(num_sequences),
          "global batch of {} tokens in {} sequences is smaller than this micro-batch of {} in {}",
          global.num_tokens, global.num_sequences, num_tokens, num_sequences);
  require_finite(batch.logprobs, "logprobs");
  require_size(batch.old_logprobs.size(), num_tokens, "old_logprobs");
  require_finite(batch.old_logprobs, "old_logprobs");
  if (options.kl_coef > 0) {
    require_size(batch.ref_logprobs.size(), num_tokens, "ref_logprobs");
    require_finite(batch.ref_logprobs, "ref_logprobs");
  }
  require(batch.sequence_advantages.empty() || batch.token_advantages.empty(),
          "advantages: both per sequence and per token are given, expected one of them");
  if (batch.token_advantages.empty()) {
    require_size(batch.sequence_advantages.size(), num_sequences, "sequence_advantages");
    for (size_t s = 0; s < num_sequences; ++s) {
      require(std::isfinite(batch.sequence_advantages[s]),
              "sequence_advantages: sequence {} is {}, expected a finite value", s,
              batch.sequence_advantages[s]);
    }
  } else {
    require_size(batch.token_advantages.size(), num_tokens, "token_advantages");
    require_finite(batch.token_advantages, "token_advantages");
  }
}

/// What a token's loss is multiplied with in a sequence of `length` tokens.
double token_share(int64_t length, const GlobalBatchSize& global,
                   const PolicyLossOptions& options) {
  const auto num_sequences = static_cast<double>(global.num_sequences);
  switch (options.aggregation) {
    case LossAggregation::kTokenMean:
      return 1.0 / static_cast<double>(global.num_tokens);
    case LossAggregation::kSequenceMean:
      return 1.0 / (num_sequences * static_cast<double>(length));
    case LossAggregation::kConstant:
      break;
  }
  require(length <= options.max_response_length,
          "a response of {} tokens is longer than max_response_length {}", length,
          options.max_response_length);
  return 1.0 / (num_sequences * static_cast<double>(options.max_response_length));
}

double mean_log_ratio(const PolicyBatch& batch, size_t begin, size_t end) {
  double sum = 0;
  for (size_t t = begin; t < end; ++t) {
    sum += static_cast<double>(batch.logprobs[t]) - batch.old_logprobs[t];
  }
  return sum / static_cast<double>(end - begin);
}

void replace_by_mean(std::span<double> values) {
  double sum = 0;
  for (double value : values) sum += value;
  std::fill(values.begin(), values.end(), sum / static_cast<double>(values.size()));
}

double per_token(double sum, int64_t num_tokens) {
  return num_tokens == 0 ? 0.0 : sum / static_cast<double>(num_tokens);
}

}  // namespace

void PolicyLossStats::merge(const PolicyLossStats& other) {
  num_tokens += other.num_tokens;
  num_clipped += other.num_clipped;
  num_truncated += other.num_truncated;
  num_masked += other.num_masked;
  ratio_sum += other.ratio_sum;
  ratio_max = std::max(ratio_max, other.ratio_max);
  approx_kl_sum += other.approx_kl_sum;
  ref_kl_sum += other.ref_kl_sum;
  weight_sum += other.weight_sum;
  weight_square_sum += other.weight_square_sum;
}

double PolicyLossStats::clip_fraction() const {
  return per_token(static_cast<double>(num_clipped), num_tokens);
}
double PolicyLossStats::truncated_fraction() const {
  return per_token(static_cast<double>(num_truncated), num_tokens);
}
double PolicyLossStats::masked_fraction() const {
  return per_token(static_cast<double>(num_masked), num_tokens);
}
double PolicyLossStats::ratio_mean() const { return per_token(ratio_sum, num_tokens); }
double PolicyLossStats::approx_kl() const { return per_token(approx_kl_sum, num_tokens); }
double PolicyLossStats::ref_kl() const { return per_token(ref_kl_sum, num_tokens); }
double PolicyLossStats::weight_mean() const { return per_token(weight_sum, num_tokens); }
double PolicyLossStats::effective_sample_size() const {
  if (num_tokens == 0) return 1.0;
  if (weight_square_sum == 0) return 0.0;
  return weight_sum * weight_sum / (static_cast<double>(num_tokens) * weight_square_sum);
}

PolicyLoss policy_loss(const PolicyBatch& batch, const GlobalBatchSize& global,
                       const PolicyLossOptions& options) {
  check_options(options);
  check_batch(batch, global, options);
  const CorrectionWeights correction = correction_weights(
      batch.old_logprobs, batch.rollout_logprobs, batch.sequence_offsets, options.correction);
  const bool sequence_ratio = options.ratio_level == RatioLevel::kSequence;

  PolicyLoss result;
  PolicyLossStats& stats = result.stats;
  stats.num_tokens = static_cast<int64_t>(batch.logprobs.size());
  stats.num_truncated = correction.num_truncated;
  stats.num_masked = correction.num_masked;
  result.grad.resize(batch.logprobs.size());
  std::vector<double> policy_slopes(batch.logprobs.size());
  for (size_t s = 0; s + 1 < batch.sequence_offsets.size(); ++s) {
    const auto begin = static_cast<size_t>(batch.sequence_offsets[s]);
    const auto end = static_cast<size_t>(batch.sequence_offsets[s + 1]);
    if (begin == end) continue;
    const double share = token_share(static_cast<int64_t>(end - begin), global, options);
    const double sequence_log_ratio = sequence_ratio ? mean_log_ratio(batch, begin, end) : 0.0;

    for (size_t t = begin; t < end; ++t) {
      const double advantage =
          batch.token_advantages.empty() ? batch.sequence_advantages[s] : batch.token_advantages[t];
      const double log_ratio = static_cast<double>(batch.logprobs[t]) - batch.old_logprobs[t];
      const Surrogate surrogate =
          clipped_surrogate(sequence_ratio ? sequence_log_ratio : log_ratio, advantage, options);
      const double weight = correction.weight[t];
      result.policy_loss += share * weight * surrogate.term.value;
      policy_slopes[t] = share * weight * surrogate.term.slope;

      stats.num_clipped += surrogate.clipped;
      stats.ratio_sum += surrogate.ratio;
      stats.ratio_max = std::max(stats.ratio_max, surrogate.ratio);
      stats.approx_kl_sum += exp_minus_one_minus(clamp_log_ratio(log_ratio));
      stats.weight_sum += weight;
      stats.weight_square_sum += weight * weight;
    }
    if (sequence_ratio) replace_by_mean(std::span(policy_slopes).subspan(begin, end - begin));

    for (size_t t = begin; t < end; ++t) {
      double slope = policy_slopes[t];
      if (options.kl_coef > 0) {
        const Term kl = kl_term(batch.logprobs[t], batch.ref_logprobs[t], options.kl_estimator);
        stats.ref_kl_sum += kl.value;
        if (correction.in_loss[t]) {
          result.kl_loss += share * kl.value;
          slope += options.kl_coef * share * kl.slope;
        }
      }
      result.grad[t] = static_cast<float>(slope);
    }
  }
  result.loss = result.policy_loss + options.kl_coef * result.kl_loss;
  return result;
}

}  // namespace quads
