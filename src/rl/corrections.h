// Importance weights that correct for the rollout engine's policy not being the trainer's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rl/names.h"

namespace quads {

/// What is done with the weight w = exp(log-prob by the trainer before the update - log-prob by the
/// rollout). Weights are constants for the gradient.
enum class CorrectionKind {
  kNone,
  /// Truncated importance sampling (Yao et al., https://fengyao.notion.site/off-policy-rl): the
  /// loss is multiplied by w clamped to [low, high]; slime's vanilla_tis_function.
  kTis,
  /// Masked importance sampling (slime's mis.py, mode "mask"): tokens (or sequences) with w outside
  /// [low, high] leave the loss, its KL term included; the others are multiplied by w.
  kMis,
  /// IcePop (Ring-1T, arXiv 2510.18855; slime's icepop_function): as MIS on tokens, but the KL term
  /// keeps all tokens.
  kIcePop,
};

/// Over what w is formed: the token; the product over its sequence; the geometric mean over it.
enum class CorrectionLevel { kToken, kSequence, kGeometric };

template <>
inline constexpr std::array<std::pair<std::string_view, CorrectionKind>, 4> kNames<CorrectionKind>{
    {{"none", CorrectionKind::kNone},
     {"tis", CorrectionKind::kTis},
     {"mis", CorrectionKind::kMis},
     {"icepop", CorrectionKind::kIcePop}}};

template <>
inline constexpr std::array<std::pair<std::string_view, CorrectionLevel>, 3>
    kNames<CorrectionLevel>{{{"token", CorrectionLevel::kToken},
                             {"sequence", CorrectionLevel::kSequence},
                             {"geometric", CorrectionLevel::kGeometric}}};

struct CorrectionOptions {
  CorrectionKind kind = CorrectionKind::kNone;
  CorrectionLevel level = CorrectionLevel::kToken;
  double low = 0.0;
  double high = 2.0;
};

/// `kind` with its usual bounds: TIS [0, 2] (slime's --tis-clip-low, --tis-clip), MIS [0.5, 2]
/// (slime's mis.yaml), IcePop [0.5, 5] (its paper).
CorrectionOptions default_correction(CorrectionKind kind,
                                     CorrectionLevel level = CorrectionLevel::kToken);

/// Per token: what the policy loss is multiplied with, and how it came about.
struct CorrectionWeights {
  std::vector<double> weight;    // 0 where masked
  std::vector<uint8_t> in_loss;  // 0 where the token leaves the whole loss (MIS)
  int64_t num_truncated = 0;     // TIS: tokens with w outside the bounds
  int64_t num_masked = 0;        // MIS, IcePop: tokens with w outside the bounds
};

/// old_logprobs, rollout_logprobs: [num_tokens]; sequence_offsets: [num_sequences + 1]. log w is
/// clamped to +-20 (after the sum or mean over a sequence). With kNone all weights are 1 and
/// rollout_logprobs may be empty. Otherwise the old log-probs must be the trainer's own,
/// recomputed: both arguments being the same array is an error, as slime refuses use_tis together
/// with use_rollout_logprobs. Errors: sizes, bounds not 0 <= low <= high, IcePop not on tokens,
/// non-finite log-probs.
CorrectionWeights correction_weights(std::span<const float> old_logprobs,
                                     std::span<const float> rollout_logprobs,
                                     std::span<const int32_t> sequence_offsets,
                                     const CorrectionOptions& options);

}  // namespace quads
