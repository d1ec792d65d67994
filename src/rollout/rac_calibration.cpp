#include "rollout/rac_calibration.h"

namespace quads {

RacMasks calibrate_masks(Engine& engine, std::span<const Request> requests,
                         GenerateOptions options) {
  RolloutBackend& backend = engine.backend();
  const QuantisedSites& sites = backend.sites();
  RacMasks masks;
  if (sites.compensated()) {
    masks = full_masks(sites);
    if (sites.precision.rac.ratio < 1.0) {
      backend.refresh(masks);
      ResidualSums sums(sites, backend.workers());
      options.residual_sums = &sums;
      engine.generate(requests, options);
      masks = select_masks(sums.totals(), sites.precision.rac);
    }
  }
  backend.refresh(masks);
  return masks;
}

}  // namespace quads
