// Rollouts on a GPU: tokens a second by precision, batch and context, with random weights that are
// made on the device.
#pragma once

#include "bench/rollout.h"

namespace quads::bench {

/// Figures: decode_tokens_per_s and step_ms (over response_len steps in which all sequences
/// decode), x_bf16 and x_fp8 (times this engine's, if they are among the precisions), of_bandwidth
/// (bytes that a step must read, weights that a batch is expected to touch and keys and values,
/// over its time, as a share of the measured copy bandwidth), prefill_tokens_per_s (until every
/// sequence has a token), and weight_gb. With by_kernel, a row per kernel of one such step: calls,
/// us, share, us_per_call. A batch whose keys and values do not fit is left out. Error without a
/// device.
Result bench_device_rollout(kernels::CpuRuntime& runtime, const RolloutBench& options);

}  // namespace quads::bench
