// The first masks of a run, before any rollout has left statistics.
#pragma once

#include "rollout/engine.h"

namespace quads {

/// Samples `requests` once with every channel compensated and selects the ratio's share by the
/// residuals seen. A ratio of 1 needs no sampling. Leaves the engine's model refreshed under the
/// masks that it returns. Masks are empty for a precision without compensation.
/// `options.residual_sums` is not used.
RacMasks calibrate_masks(Engine& engine, std::span<const Request> requests,
                         GenerateOptions options);

}  // namespace quads
