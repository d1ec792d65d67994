// The rewards by name: one line each.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "rewards/code_reward.h"
#include "rewards/combined_reward.h"
#include "rewards/command_reward.h"
#include "rewards/exact_reward.h"
#include "rewards/math_reward.h"
#include "rewards/reward.h"

namespace quads {
namespace {

using Maker = std::function<std::unique_ptr<Reward>(const RewardOptions& options)>;

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> table = {
      {"code", make_code_reward},
      {"command", make_command_reward},
      {"exact", make_exact_reward},
      {"math", make_math_reward},
  };
  return table;
}

// What all rewards have in common: stop tokens are no part of the answer, and a value that is not
// finite is none.
class CheckedReward : public Reward {
 public:
  CheckedReward(std::unique_ptr<Reward> reward, std::vector<std::string> stops)
      : reward_(std::move(reward)), stops_(std::move(stops)) {}

  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override {
    std::vector<RewardRequest> stripped(requests.begin(), requests.end());
    for (RewardRequest& request : stripped) request.response = without_stop(request.response);
    std::vector<RewardResult> results = reward_->score(stripped);
    for (RewardResult& result : results) {
      if (result.failure.empty() && !std::isfinite(result.value)) {
        result.failure = fmt::format("the reward is {}, not a finite number", result.value);
      }
    }
    return results;
  }

  std::optional<std::string> normal_answer(const RewardRequest& request) override {
    RewardRequest stripped = request;
    stripped.response = without_stop(stripped.response);
    return reward_->normal_answer(stripped);
  }

 private:
  std::string_view without_stop(std::string_view response) const {
    for (const std::string& stop : stops_) {
      if (!stop.empty() && response.ends_with(stop)) {
        response.remove_suffix(stop.size());
        break;
      }
    }
    return response;
  }

  std::unique_ptr<Reward> reward_;
  std::vector<std::string> stops_;
};

}  // namespace

std::unique_ptr<Reward> make_reward(const RewardOptions& options) {
  require(!options.types.empty(), "--rm-type: no reward is named; there are: {}",
          fmt::join(reward_types(), ", "));
  require(options.weights.empty() || options.weights.size() == options.types.size(),
          "--rm-weights: {} weights for {} rewards ({})", options.weights.size(),
          options.types.size(), fmt::join(options.types, ", "));
  std::set<std::string> seen;
  std::vector<CombinedReward::Part> parts;
  for (size_t i = 0; i < options.types.size(); ++i) {
    const std::string& type = options.types[i];
    const auto maker = makers().find(type);
    require(maker != makers().end(), "--rm-type: unknown reward '{}'; there are: {}", type,
            fmt::join(reward_types(), ", "));
    require(seen.insert(type).second, "--rm-type: '{}' is named twice", type);
    const double weight = options.weights.empty() ? 1.0 : options.weights[i];
    require(std::isfinite(weight), "--rm-weights: {} for '{}' is not finite", weight, type);
    parts.push_back({type, weight, maker->second(options)});
  }
  return std::make_unique<CheckedReward>(std::make_unique<CombinedReward>(std::move(parts)),
                                         options.stops);
}

std::vector<std::string> reward_types() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : makers()) names.push_back(name);
  return names;
}

}  // namespace quads
