// Whole steps of reinforcement learning on a GPU: seconds by part, with random weights that are
// made on the device.
#pragma once

#include <string>
#include <vector>

#include "bench/result.h"
#include "rl/recipe.h"

namespace quads::bench {

struct DeviceTrainBench {
  std::string shape = "olmoe";
  int64_t layers = 0;                // 0: the shape's
  std::vector<std::string> recipes;  // behind the name ":aten": on ATen's kernels, ":floor":
                                     // --rac-scale-floor
  int64_t steps = 3;                 // the first is not counted
  int64_t prompts = 32;
  int64_t samples = 8;  // a prompt
  int64_t prompt_len = 128;
  int64_t response_len = 384;
  int64_t max_tokens = 0;  // rows of a micro-batch; 0: what `train` takes
};

/// A recipe of DeviceTrainBench.
struct DeviceRecipe {
  Recipe recipe;
  bool aten = false;
};
/// Error for an unknown name, or what else stands behind a colon.
DeviceRecipe parse_device_recipe(const std::string& name);

/// A step is a rollout, one update on all of it (forward, backward, AdamW), and the weights
/// quantised for both sides. Figures, medians over the steps: step_s; rollout_s,
/// forward_backward_s, optimizer_s, quantise_s; rollout_tokens_per_s (of responses);
/// train_tokens_per_s (rows over forward, backward and optimizer); mfu, of forward and backward:
/// (6 * the parameters that a row multiplies with + 6 * layers * heads * head_dim * the mean length
/// of a sequence, half of all pairs being causal) * rows over their time and 989 TF/s, the dense
/// BF16 peak of an H100 and H200 (nvidia.com/h200); and x_first, the step's time over that of the
/// first recipe. gap_max is the largest difference between the rollout's and the trainer's
/// log-probs in all of them: a median would hide a step with one. The memory plan goes to stderr.
/// Error without a device.
Result bench_device_train(const DeviceTrainBench& options);

}  // namespace quads::bench
