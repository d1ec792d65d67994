// Scoring the responses to a task's problems.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rewards/reward.h"
#include "tasks/task.h"

namespace quads {

/// One result a response, in order. responses: [problems * n] decoded texts, a problem's n side by
/// side. Error if the reward gives another number of results.
std::vector<RewardResult> score_responses(Reward& reward, std::span<const Problem> problems,
                                          std::span<const std::string> responses);

/// What the reward is asked for one response; the views are into the arguments.
RewardRequest reward_request(const Problem& problem, const std::string& response);

}  // namespace quads
