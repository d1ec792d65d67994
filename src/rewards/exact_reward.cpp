#include "rewards/exact_reward.h"

namespace quads {
namespace {

std::string_view trim(std::string_view text) {
  constexpr const char* kWhiteSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  return begin == std::string_view::npos
             ? std::string_view()
             : text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

}  // namespace

std::vector<RewardResult> ExactReward::score(std::span<const RewardRequest> requests) {
  std::vector<RewardResult> results;
  results.reserve(requests.size());
  for (const RewardRequest& request : requests) {
    results.push_back({.value = trim(request.response) == trim(request.label) ? 1.0 : 0.0});
  }
  return results;
}

std::optional<std::string> ExactReward::normal_answer(const RewardRequest& request) {
  return std::string(trim(request.response));
}

std::unique_ptr<Reward> make_exact_reward(const RewardOptions& /*options*/) {
  return std::make_unique<ExactReward>();
}

}  // namespace quads
