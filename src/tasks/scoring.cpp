#include "tasks/scoring.h"

#include "base/error.h"

namespace quads {

RewardRequest reward_request(const Problem& problem, const std::string& response) {
  return {.prompt = problem.prompt,
          .response = response,
          .label = problem.label,
          .metadata = problem.metadata.get()};
}

std::vector<RewardResult> score_responses(Reward& reward, std::span<const Problem> problems,
                                          std::span<const std::string> responses) {
  if (responses.empty()) return {};
  require(!problems.empty() && responses.size() % problems.size() == 0,
          "score_responses: {} responses to {} problems", responses.size(), problems.size());
  const size_t n = responses.size() / problems.size();
  std::vector<RewardRequest> requests;
  requests.reserve(responses.size());
  for (size_t i = 0; i < responses.size(); ++i) {
    requests.push_back(reward_request(problems[i / n], responses[i]));
  }
  std::vector<RewardResult> results = reward.score(requests);
  require(results.size() == requests.size(), "the reward gave {} results for {} responses",
          results.size(), requests.size());
  return results;
}

}  // namespace quads
