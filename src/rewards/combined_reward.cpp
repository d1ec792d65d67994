#include "rewards/combined_reward.h"

namespace quads {

std::vector<RewardResult> CombinedReward::score(std::span<const RewardRequest> requests) {
  std::vector<RewardResult> sums(requests.size());
  for (const Part& part : parts_) {
    if (part.weight == 0) continue;
    const std::vector<RewardResult> results = part.reward->score(requests);
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i].value += part.weight * results[i].value;
      if (sums[i].failure.empty() && !results[i].failure.empty()) {
        sums[i].failure = fmt::format("{}: {}", part.name, results[i].failure);
      }
    }
  }
  return sums;
}

std::optional<std::string> CombinedReward::normal_answer(const RewardRequest& request) {
  for (const Part& part : parts_) {
    if (auto answer = part.reward->normal_answer(request)) return answer;
  }
  return std::nullopt;
}

}  // namespace quads
