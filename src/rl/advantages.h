// Advantages from the rewards of a prompt's samples, DAPO's group filter and its length penalty.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quads {

struct AdvantageOptions {
  /// GRPO divides by the group's standard deviation, Dr.GRPO does not.
  bool divide_by_std = true;
  /// Added to the standard deviation.
  double eps = 1e-6;
};

/// Advantage of every sample. rewards: [num_groups * group_size], a prompt's samples side by side;
/// NaN marks a sample without a reward. Returns [num_groups * group_size].
///
/// GRPO (Shao et al., arXiv 2402.03300): (r - mean) / (std + eps), with the unbiased standard
/// deviation (n - 1), as verl (core_algos.py, compute_grpo_outcome_advantage) and slime have it
/// through torch.std. Dr.GRPO (Liu et al., arXiv 2503.20783): r - mean.
///
/// Exactly 0 for: a group of equal rewards; a group with one reward, which has nothing to be
/// compared with (verl returns the reward itself there); a sample without a reward, which also does
/// not count in its group's mean and deviation. Errors: a size that is not whole groups, an
/// infinite reward.
std::vector<float> group_advantages(std::span<const float> rewards, int64_t group_size,
                                    const AdvantageOptions& options = {});

/// Whether the samples of one prompt differ in reward, so that they carry a gradient: DAPO's
/// dynamic sampling (Yu et al., arXiv 2503.14476, eq. 11) keeps these prompts. NaN rewards do not
/// count.
bool group_is_informative(std::span<const float> rewards);

/// Which samples are trained on: those that have a reward (NaN is none), in groups where another
/// has one too, since alone it has nothing to be compared with. With group_size 1 the first
/// suffices. rewards: [num_groups * group_size]; returns a flag for each.
std::vector<bool> trainable_samples(std::span<const float> rewards, int64_t group_size);

/// DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), to be added to the reward: 0 up to
/// max_length - cache_length tokens, falling linearly to -1 at max_length, -1 beyond. Needs
/// 0 < cache_length <= max_length and length >= 0.
float overlong_penalty(int64_t length, int64_t max_length, int64_t cache_length);

}  // namespace quads
