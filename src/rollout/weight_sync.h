// Brings the trainer's weights to the rollout: requantised in place, at addresses that never
// change.
#pragma once

#include <span>

#include "kernels/cpu/context.h"
#include "model/packed_model.h"

namespace quads {

/// The rollout's weights are a pure function of (parameters, masks), so syncing A, B and A again
/// gives A's rollouts to the bit.
class WeightSync {
 public:
  struct Report {
    int64_t policy_version = 0;  // of the weights now in place
    double seconds = 0.0;
    int64_t bytes_read = 0;     // BF16 parameters
    int64_t bytes_written = 0;  // packed matrices
  };

  /// All must outlive this object; `model` packs `parameters`.
  WeightSync(kernels::CpuRuntime& runtime, Parameters& parameters, PackedModel& model)
      : runtime_(runtime), parameters_(parameters), model_(model) {}

  /// After the parameters' values have changed. Error naming tensor, row and column on a value that
  /// is not finite; the model is not to be used then before a sync that succeeds.
  Report sync(const RacMasks& masks);
  /// Values from a trainer elsewhere: every tensor of the model by name. Error as for
  /// Parameters::assign, naming the tensor; parameters and model stay as they were then.
  Report sync_named(std::span<const NamedTensor> tensors, const RacMasks& masks);

  /// How many syncs have succeeded.
  int64_t policy_version() const { return policy_version_; }

 private:
  kernels::CpuRuntime& runtime_;
  Parameters& parameters_;
  PackedModel& model_;
  int64_t policy_version_ = 0;
};

}  // namespace quads
