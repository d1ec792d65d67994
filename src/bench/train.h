// Training steps of the demo's shape: seconds by part.
#pragma once

#include <string>
#include <vector>

#include "bench/result.h"
#include "kernels/cpu/context.h"

namespace quads::bench {

struct TrainBench {
  std::vector<std::string> recipes;
  int64_t steps = 6;  // the first is not counted
  int64_t prompts = 32;
  int64_t samples = 16;
  int64_t response_len = 24;
};

/// Figures, medians over the steps: step_s, rollout_s, train_s, sync_s, rollout_tokens_per_s,
/// train_tokens_per_s, x_bf16 (of the step, if bf16 is the first recipe).
Result bench_train(kernels::CpuRuntime& runtime, const TrainBench& options);

}  // namespace quads::bench
