#include "rewards/exact_reward.h"

#include "base/text.h"

namespace quads {
std::vector<RewardResult> ExactReward::score(std::span<const RewardRequest> requests) {
  std::vector<RewardResult> results;
  results.reserve(requests.size());
  for (const RewardRequest& request : requests) {
    results.push_back({.value = trimmed(request.response) == trimmed(request.label) ? 1.0 : 0.0});
  }
  return results;
}

std::optional<std::string> ExactReward::normal_answer(const RewardRequest& request) {
  return std::string(trimmed(request.response));
}

std::unique_ptr<Reward> make_exact_reward(const RewardOptions& /*options*/) {
  return std::make_unique<ExactReward>();
}

}  // namespace quads
