// The two sides of a run on a device: what samples and what trains.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/device.h"
#include "model/device_operands.h"
#include "model/parameters.h"
#include "rollout/backend.h"
#include "trainer/trainer.h"

namespace quads {

/// What trains.
class TrainerSide {
 public:
  virtual ~TrainerSide() = default;
  virtual Trainer& trainer() = 0;
  /// Packs the trainer's weights under `masks`, which its updates keep from here on.
  virtual void refresh_trainer(const RacMasks& masks) = 0;
  /// Brings the trainer's parameters to the host's, for a checkpoint.
  virtual void fetch_parameters() = 0;
  /// What a device's memory holds, in words; empty on the CPU.
  virtual std::string memory_plan() const { return {}; }
};

class Sides : public TrainerSide {
 public:
  /// The rollout's weights and steps.
  virtual RolloutBackend& backend() = 0;
  /// Brings the trainer's parameters to the rollout under `masks`. Error naming tensor, row and
  /// column on a value that is not finite.
  virtual void sync(const RacMasks& masks) = 0;
  /// As Trainer::logprobs, of the policy that the run began with. Needs Options::with_reference.
  virtual std::vector<float> reference_logprobs(std::span<const TrainSequence> sequences) = 0;
};

struct TrainerSideOptions {
  Precision precision;
  QuantizeScope scope;
  Trainer::Options training;
  int64_t max_context = 4096;  // of a sequence; the CPU has no bound
};

struct SidesOptions {
  TrainerSideOptions trainer;  // its scope and max_context are the rollout's too
  Precision rollout;
  bool with_reference = false;
  // The bounds of the engine that runs on the backend; the CPU's needs none.
  int64_t max_running = 256;
  int64_t prefill_chunk = 512;
  int64_t kv_memory = 0;  // bytes
};

/// Blocks of a trainer on the CPU that are made by a layer above, with what refreshes them after an
/// update.
struct ForeignBlocks {
  std::function<void()> refresh;  // may own what the blocks refer to: destroyed after them
  std::unique_ptr<Blocks> blocks;
};
/// What makes them, on the CPU and on a GPU, whose operands outlive the blocks.
struct ForeignKernels {
  std::function<ForeignBlocks(const Parameters&, const kernels::CpuContext&)> on_cpu;
  std::function<std::unique_ptr<Blocks>(const DeviceOperands&)> on_gpu;
};

/// `policy` and `runtime` must outlive the sides. It is trained by the rollout's kernels, or by
/// `foreign` ones if those are given; on the CPU in place, on a GPU `policy` holds what was trained
/// after fetch_parameters. Error where the program was built without CUDA, there is no device, or
/// its memory does not suffice.
std::unique_ptr<Sides> make_sides(Device device, kernels::CpuRuntime& runtime, Parameters& policy,
                                  const SidesOptions& options, const ForeignKernels* foreign);
/// The same for a trainer alone, on the shared kernels.
std::unique_ptr<TrainerSide> make_trainer_side(Device device, kernels::CpuRuntime& runtime,
                                               Parameters& policy,
                                               const TrainerSideOptions& options);

// The CPU's (rl/cuda_sides.h has a GPU's); the two above choose.
std::unique_ptr<Sides> make_cpu_sides(kernels::CpuRuntime& runtime, Parameters& policy,
                                      const SidesOptions& options, const ForeignKernels* foreign);
std::unique_ptr<TrainerSide> make_cpu_trainer_side(kernels::CpuRuntime& runtime, Parameters& policy,
                                                   const TrainerSideOptions& options);

}  // namespace quads
