#include "rl/corrections.h"

#include <algorithm>

#include "rl/checks.h"
#include "rl/portable_exp.h"

namespace quads {
namespace {

void check(std::span<const float> old_logprobs, std::span<const float> rollout_logprobs,
           const CorrectionOptions& options) {
  require_size(rollout_logprobs.size(), old_logprobs.size(), "rollout_logprobs");
  require(old_logprobs.empty() || old_logprobs.data() != rollout_logprobs.data(),
          "correction: the old log-probs are the rollout's, so every weight would be 1; expected "
          "old log-probs recomputed by the trainer");
  require(options.low >= 0 && options.low <= options.high,
          "correction: bounds [{}, {}] (--tis-clip-low, --tis-clip), expected 0 <= low <= high",
          options.low, options.high);
  require(options.kind != CorrectionKind::kIcePop || options.level == CorrectionLevel::kToken,
          "correction: IcePop is defined on tokens, not on sequences; use MIS");
  require_finite(old_logprobs, "old_logprobs");
  require_finite(rollout_logprobs, "rollout_logprobs");
}

/// The log-weight that all tokens of a sequence share; `log_weights` are the tokens'.
double sequence_log_weight(std::span<const double> log_weights, CorrectionLevel level) {
  double sum = 0;
  for (double log_weight : log_weights) sum += log_weight;
  if (level == CorrectionLevel::kSequence) return sum;
  return sum / static_cast<double>(log_weights.size());
}

}  // namespace

CorrectionOptions default_correction(CorrectionKind kind, CorrectionLevel level) {
  switch (kind) {
    case CorrectionKind::kMis:
      return {kind, level, 0.5, 2.0};
    case CorrectionKind::kIcePop:
      return {kind, level, 0.5, 5.0};
    case CorrectionKind::kNone:
    case CorrectionKind::kTis:
      break;
  }
  return {kind, level, 0.0, 2.0};
}

CorrectionWeights correction_weights(std::span<const float> old_logprobs,
                                     std::span<const float> rollout_logprobs,
                                     std::span<const int32_t> sequence_offsets,
                                     const CorrectionOptions& options) {
  const size_t num_tokens = old_logprobs.size();
  require_offsets(sequence_offsets, num_tokens);
  CorrectionWeights result;
  result.weight.assign(num_tokens, 1.0);
  result.in_loss.assign(num_tokens, 1);
  if (options.kind == CorrectionKind::kNone) return result;
  check(old_logprobs, rollout_logprobs, options);

  std::vector<double> log_weights(num_tokens);
  for (size_t t = 0; t < num_tokens; ++t) {
    log_weights[t] = static_cast<double>(old_logprobs[t]) - rollout_logprobs[t];
  }
  if (options.level != CorrectionLevel::kToken) {
    for (size_t s = 0; s + 1 < sequence_offsets.size(); ++s) {
      const auto begin = static_cast<size_t>(sequence_offsets[s]);
      const auto length = static_cast<size_t>(sequence_offsets[s + 1]) - begin;
      const auto sequence = std::span(log_weights).subspan(begin, length);
      std::fill(sequence.begin(), sequence.end(), sequence_log_weight(sequence, options.level));
    }
  }
  for (size_t t = 0; t < num_tokens; ++t) {
    const double weight = portable_exp(clamp_log_ratio(log_weights[t]));
    const bool outside = weight < options.low || weight > options.high;
    if (options.kind == CorrectionKind::kTis) {
      result.weight[t] = std::clamp(weight, options.low, options.high);
      result.num_truncated += outside;
    } else {
      result.weight[t] = outside ? 0.0 : weight;
      result.in_loss[t] = !(outside && options.kind == CorrectionKind::kMis);
      result.num_masked += outside;
    }
  }
  return result;
}

}  // namespace quads
