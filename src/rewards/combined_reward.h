// Several rewards as one: the weighted sum.
#pragma once

#include "rewards/reward.h"

namespace quads {

/// The sum of weight * value over its parts. A response that one part cannot score has no value,
/// and names the part. A part of weight 0 is not asked. The normal form of an answer is that of the
/// first part that has one.
class CombinedReward : public Reward {
 public:
  struct Part {
    std::string name;
    double weight;
    std::shared_ptr<Reward> reward;
  };
  explicit CombinedReward(std::vector<Part> parts) : parts_(std::move(parts)) {}

  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override;
  std::optional<std::string> normal_answer(const RewardRequest& request) override;

 private:
  std::vector<Part> parts_;
};

}  // namespace quads
