// A program of the user's as a reward.
#pragma once

#include <memory>

#include "rewards/reward.h"
#include "rewards/worker_pool.h"

namespace quads {

/// The program reads lines {"prompt": "...", "response": "...", "label": "...", "metadata": {...}
/// or null} and answers each at once with a line {"reward": x} or {"error": "why there is none"}.
/// Several copies of it run side by side and stay up. A response whose worker crashes, answers with
/// something else or does not answer in time is a failure with that cause; bytes of a text that are
/// not UTF-8 are replaced by U+FFFD.
class CommandReward : public Reward {
 public:
  /// Asks about an empty response, so that a program that cannot start is an Error before anything
  /// is sampled; what it answers does not count.
  explicit CommandReward(WorkerPoolOptions options);
  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override;

 private:
  WorkerPool pool_;
};

/// RewardOptions: command, workers, timeout_s, cancel. Error without a command.
std::unique_ptr<Reward> make_command_reward(const RewardOptions& options);

}  // namespace quads
