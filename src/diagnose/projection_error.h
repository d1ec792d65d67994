// How far quantised linear layers are from BF16 ones, layer by layer, on the same inputs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/packed_model.h"
#include "rollout/rollout.h"

namespace quads {

/// ||y_q - y|| / ||y|| of one projection of one layer, over all rows and experts that the rows were
/// routed to; one figure a candidate.
struct ProjectionError {
  int64_t layer;
  std::string projection;  // "qkv", "out", "gate_up", "down"
  std::vector<double> relative;
};

/// The inputs are those that `reference` (BF16) has there on the samples' tokens: errors of earlier
/// layers are not passed on. Projections that no candidate quantises are left out. All models are
/// of the same parameters and refreshed.
std::vector<ProjectionError> projection_errors(const kernels::CpuContext& context,
                                               PackedModel& reference,
                                               std::span<const PackedModel* const> candidates,
                                               std::span<const Sample> samples);

}  // namespace quads
