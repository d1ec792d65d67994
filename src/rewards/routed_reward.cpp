#include "rewards/routed_reward.h"

#include <cmath>

namespace quads {

std::vector<RewardResult> RoutedReward::score(std::span<const RewardRequest> requests) {
  struct Part {
    std::vector<size_t> places;
    std::vector<RewardRequest> requests;
  };
  std::vector<Reward*> order;  // as they are first needed
  std::map<Reward*, Part> parts;
  for (size_t i = 0; i < requests.size(); ++i) {
    Reward& reward = reward_of(requests[i]);
    Part& part = parts[&reward];
    if (part.places.empty()) order.push_back(&reward);
    part.places.push_back(i);
    part.requests.push_back(without_stop(requests[i]));
  }
  std::vector<RewardResult> results(requests.size());
  for (Reward* reward : order) {
    const Part& part = parts[reward];
    std::vector<RewardResult> scored = reward->score(part.requests);
    require(scored.size() == part.places.size(), "a reward gave {} results for {} responses",
            scored.size(), part.places.size());
    for (size_t i = 0; i < scored.size(); ++i) {
      RewardResult& result = scored[i];
      if (result.failure.empty() && !std::isfinite(result.value)) {
        result.failure = fmt::format("the reward is {}, not a finite number", result.value);
      }
      results[part.places[i]] = std::move(result);
    }
  }
  return results;
}

std::optional<std::string> RoutedReward::normal_answer(const RewardRequest& request) {
  return reward_of(request).normal_answer(without_stop(request));
}

Reward& RoutedReward::reward_of(const RewardRequest& request) const {
  const std::vector<std::string> types = rewards_of(options_, request.metadata);
  if (types == options_.types) return *sum_;
  const auto it = named_.find(types.front());
  require(it != named_.end(), "a problem's 'rm_type' is '{}', which --rm-type does not prepare",
          types.front());
  return *it->second;
}

RewardRequest RoutedReward::without_stop(const RewardRequest& request) const {
  RewardRequest result = request;
  for (const std::string& stop : options_.stops) {
    if (!stop.empty() && result.response.ends_with(stop)) {
      result.response.remove_suffix(stop.size());
      break;
    }
  }
  return result;
}

}  // namespace quads
