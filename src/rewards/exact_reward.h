// 1 for a response that is the label, else 0.
#pragma once

#include "rewards/reward.h"

namespace quads {

/// Compares response and label as texts, but for white space at both ends. The normal form of an
/// answer is the response without that white space.
class ExactReward : public Reward {
 public:
  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override;
  std::optional<std::string> normal_answer(const RewardRequest& request) override;
};

std::unique_ptr<Reward> make_exact_reward(const RewardOptions& options);

}  // namespace quads
