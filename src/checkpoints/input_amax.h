// Calibration of static input scales: the largest inputs that some prompts give a model's linears.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kernels/cpu/context.h"
#include "model/parameters.h"
#include "model/precision.h"

namespace quads {

/// The largest magnitudes of the inputs of every layer's linears: [layers * kSites], 0 where
/// nothing was seen. All experts of a layer have one, as engines fuse them.
struct InputAmax {
  std::vector<float> values;
  float at(int64_t layer, Site site) const {
    return values[static_cast<size_t>(layer * kSites + static_cast<int64_t>(site))];
  }
};

/// Runs the prompts (each at least one token) through the model in BF16. `on_progress` is called
/// with the number of prompts done. Error naming the prompt if it is empty or longer than the
/// model's positions.
InputAmax measure_input_amax(kernels::CpuRuntime& runtime, const Parameters& parameters,
                             std::span<const std::vector<int32_t>> prompts,
                             const std::function<void(int64_t done)>& on_progress);

}  // namespace quads
