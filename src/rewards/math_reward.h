// 1 for a response whose final answer is the label's, as mathematics has it, else 0.
#pragma once

#include <memory>

#include "rewards/reward.h"
#include "rewards/worker_pool.h"

namespace quads {

/// Numbers and equal texts are compared in process (math_compare.h), everything else by a pool of
/// math-verify processes; docs/rewards.md says how the two differ. A response without an answer, or
/// one that the checker cannot get through (it takes too long or ends the process), has the value
/// 0. Failures are: a label without an answer, a label that the checker cannot get through, and a
/// pool that does not work.
class MathReward : public Reward {
 public:
  /// `checker` answers {"label", "answer"} with {"equal": true|false} or {"error": "..."}. It must
  /// be deterministic. Error if it does not find 1+1 equal to 2 and different from 3.
  explicit MathReward(WorkerPoolOptions checker);

  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override;
  /// normal_answer_text of the response's answer.
  std::optional<std::string> normal_answer(const RewardRequest& request) override;

 private:
  struct Question {
    std::string label;
    std::string answer;
    auto operator<=>(const Question&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  std::vector<RewardResult> check(std::span<const Question> questions);

  WorkerPool pool_;
};

/// Checks with math-verify, run by options.python.
std::unique_ptr<Reward> make_math_reward(const RewardOptions& options);

}  // namespace quads
