// What stands in front of all rewards: each problem goes to the reward that its metadata ask for,
// without the stop token's text, and a value that is not finite is none.
#pragma once

#include "rewards/reward.h"

namespace quads {

class RoutedReward : public Reward {
 public:
  /// `sum` scores what goes to options.types, `named` holds every single reward by its name.
  RoutedReward(std::unique_ptr<Reward> sum, std::map<std::string, std::shared_ptr<Reward>> named,
               RewardOptions options)
      : sum_(std::move(sum)), named_(std::move(named)), options_(std::move(options)) {}

  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override;
  std::optional<std::string> normal_answer(const RewardRequest& request) override;

 private:
  /// Error if the problem asks for a reward that was not made.
  Reward& reward_of(const RewardRequest& request) const;
  RewardRequest without_stop(const RewardRequest& request) const;

  std::unique_ptr<Reward> sum_;
  std::map<std::string, std::shared_ptr<Reward>> named_;
  RewardOptions options_;
};

}  // namespace quads
