#include "rollout/rac_calibration.h"

namespace quads {

RacMasks calibrate_masks(Engine& engine, std::span<const Request> requests,
                         GenerateOptions options) {
  PackedModel& model = engine.model();
  const kernels::CpuContext context = engine.runtime().context();
  const Precision& precision = model.precision();
  RacMasks masks;
  if (precision.rac.ratio > 0 && precision.activations == Format::kNvfp4) {
    masks = full_masks(model);
    if (precision.rac.ratio == 1.0) {
      model.refresh(context, masks);
      return masks;
    }
    model.refresh(context, masks);
    ResidualSums sums(model, engine.runtime().num_threads());
    options.residual_sums = &sums;
    engine.generate(requests, options);
    masks = select_masks(sums.totals(), precision.rac);
  }
  model.refresh(context, masks);
  return masks;
}

}  // namespace quads
