// Where the gap of NVFP4 rollouts comes from, on given weights and prompts, before and after each
// of the two cures: residual compensation in the rollout, W4A16 in the trainer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "diagnose/chain.h"
#include "diagnose/projection_error.h"
#include "eval/generator.h"
#include "model/blocks.h"

namespace quads {

struct DiagnosisOptions {
  QuantizeScope scope;
  Rac rac;  // ratio > 0
  std::vector<Request> requests;
  GenerateOptions sampling;  // temperature > 0
  GeneratorOptions engine;   // sizes; its precision and scope are not used
  /// The trainer's kernels on a packed model; empty: those of the rollout.
  std::function<std::unique_ptr<Blocks>(const PackedModel&)> trainer_blocks;
};

/// One pair of a rollout and a trainer. Its chain is rollout, W4A16, the trainer's precision, the
/// trainer's kernels; the parts are delta_act, delta_weight and delta_num.
struct PairDiagnosis {
  std::string rollout, trainer;     // "nvfp4-rac50", "bf16"
  size_t samples;                   // index into Diagnosis::samples
  std::vector<Delta> deltas;        // the parts, then the gap
  std::vector<DeltaSummary> parts;  // of the same
  const DeltaSummary& gap() const { return parts.back(); }
  /// The part with the largest mean, empty if the gap is zero everywhere.
  std::string dominant() const;
};

struct Diagnosis {
  std::vector<std::vector<Sample>> samples;  // one list a rollout precision
  std::vector<PairDiagnosis> pairs;
  std::vector<std::string> candidates;  // columns of `projections`
  std::vector<ProjectionError> projections;
};

/// Samples the requests under W4A4 and under W4A4 with compensation (masks made from the same
/// requests), and scores each rollout's tokens along its chains. Error if it was cancelled.
Diagnosis diagnose(kernels::CpuRuntime& runtime, const Parameters& parameters,
                   const DiagnosisOptions& options);

}  // namespace quads
