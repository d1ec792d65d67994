// The models that benchmarks run on: known shapes, random weights.
#pragma once

#include <memory>
#include <string>

#include "model/parameters.h"
#include "model/precision.h"

namespace quads::bench {

/// "demo": what `quads pretrain` makes by default (4 layers of 128, 8 experts of 64, top-2).
/// "1b": a mixture of experts of a billion parameters (12 layers of 2048, 16 experts of 768,
/// top-2). "olmoe": OLMoE-1B-7B. "30b": Qwen3-30B-A3B. Error on another name, with the list.
ModelConfig bench_shape(const std::string& name);

/// What a model multiplies with, and where.
struct BenchPrecision {
  Precision precision;
  QuantizeScope scope;
};

/// The share of the experts that some row of a batch is expected to choose, if routing is uniform.
double touched_experts(const ModelConfig& config, int64_t batch);

/// Shows its progress on standard error where it takes long.
std::unique_ptr<Parameters> random_parameters(const ModelConfig& config);

}  // namespace quads::bench
