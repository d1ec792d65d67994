// Rollouts: tokens a second by precision and batch size.
#pragma once

#include <string>
#include <vector>

#include "bench/result.h"
#include "bench/shapes.h"
#include "kernels/cpu/context.h"

namespace quads::bench {

struct RolloutBench {
  std::string shape = "demo";
  std::vector<BenchPrecision> precisions;
  std::vector<int64_t> batches;  // sequences decoded together
  int64_t prompt_len = 8;
  int64_t response_len = 32;
  int repeats = 3;
  bool by_kernel = false;  // on a GPU: the times of a decode step's kernels instead
};

/// Figures: tokens_per_s, x_bf16 (this project's BF16 at the same batch, if it is among the
/// precisions), and limit_tokens_per_s and of_limit: what the memory allows if every step reads the
/// weights it needs once, the experts that a batch is expected to touch among them (only for models
/// that the caches do not hold).
Result bench_rollout(kernels::CpuRuntime& runtime, const RolloutBench& options);

}  // namespace quads::bench
