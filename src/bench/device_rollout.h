// Rollouts on a GPU: tokens a second by precision, batch and context, with random weights that are
// made on the device.
#pragma once

#include "bench/rollout.h"

namespace quads::bench {

/// Figures: decode_tokens_per_s (all sequences at contexts of prompt_len and more, their prompts in
/// place), x_bf16 and x_fp8 (times this engine's, if they are among the precisions), step_ms,
/// of_bandwidth (bytes that a step must read, weights that a batch is expected to touch and keys
/// and values, over its time, as a share of the measured copy bandwidth), prefill_tokens_per_s, and
/// weight_gb. A batch whose keys and values do not fit is left out. Error without a device.
Result bench_device_rollout(kernels::CpuRuntime& runtime, const RolloutBench& options);

}  // namespace quads::bench
