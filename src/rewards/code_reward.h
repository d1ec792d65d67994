// Whether the program in a response passes its problem's tests.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "rewards/reward.h"
#include "rewards/sandbox.h"

namespace quads {

/// The program is the response's last Python block (code_block.h); the tests are in label or
/// metadata (test_cases.h). 1 if it passes all tests, else 0; or the fraction that it passes. A
/// response without a program, or whose program breaks a limit, is 0. A problem without usable
/// tests is a failure, and so is a sandbox that breaks twice, unless it works for another program:
/// then it was this one, and 0.
class CodeReward : public Reward {
 public:
  struct Options {
    SandboxOptions sandbox{};
    int workers = 1;        // programs at once
    bool fraction = false;  // of the tests; else testing ends at the first that is failed
  };

  /// Error if programs cannot be run here (check_sandbox).
  explicit CodeReward(const Options& options);
  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override;

 private:
  Options options_;
  ThreadPool threads_;
  std::vector<std::unique_ptr<Sandbox>> sandboxes_;  // one a thread
};

/// RewardOptions: workers, timeout_s (for a test), code_sandbox, code_fraction, cancel.
std::unique_ptr<Reward> make_code_reward(const RewardOptions& options);

}  // namespace quads
