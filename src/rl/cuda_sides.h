// Both sides on a GPU; rl/sides.h chooses.
#pragma once

#include "cuda/parameter_source.h"
#include "rl/sides.h"

namespace quads {

/// The policy starts with the values of `initial`, which need not outlive the sides; `fetched` is
/// where fetch_parameters brings what was trained, null for nowhere. Error as make_sides.
std::unique_ptr<Sides> make_cuda_sides(const cuda::ParameterSource& initial, Parameters* fetched,
                                       const SidesOptions& options, const ForeignKernels* foreign);
std::unique_ptr<TrainerSide> make_cuda_trainer_side(const cuda::ParameterSource& initial,
                                                    Parameters* fetched,
                                                    const TrainerSideOptions& options);

}  // namespace quads
