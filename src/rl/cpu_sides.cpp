// Both sides on the CPU. What they hold in BF16 is held once.
#include <algorithm>

#include "model/cpu_blocks.h"
#include "rl/sides.h"
#include "rollout/cpu_backend.h"
#include "rollout/weight_sync.h"

namespace quads {
namespace {

PackedModel::Options trainer_options(const TrainerSideOptions& options) {
  return {.precision = options.precision, .scope = options.scope, .with_transposes = true};
}

class CpuTrainer : public TrainerSide {
 public:
  CpuTrainer(kernels::CpuRuntime& runtime, Parameters& policy, const TrainerSideOptions& options)
      : context_(runtime.context()),
        model_(policy, trainer_options(options)),
        blocks_(context_, model_),
        trainer_(
            context_, policy, model_, blocks_, [this] { pack(); }, options.training) {}

  Trainer& trainer() override { return trainer_; }
  void refresh_trainer(const RacMasks& masks) override {
    masks_ = masks;
    pack();
  }
  void fetch_parameters() override {}

 private:
  void pack() { model_.refresh(context_, masks_); }

  kernels::CpuContext context_;
  RacMasks masks_;
  PackedModel model_;
  CpuBlocks blocks_;
  Trainer trainer_;
};

class CpuSides : public Sides {
 public:
  CpuSides(kernels::CpuRuntime& runtime, Parameters& policy, const SidesOptions& options,
           const ForeignKernels* foreign)
      : context_(runtime.context()),
        trainer_model_(
            foreign ? nullptr
                    : std::make_unique<PackedModel>(policy, trainer_options(options.trainer))),
        rollout_model_(policy, {.precision = options.rollout,
                                .scope = options.trainer.scope,
                                .share = trainer_model_.get()}),
        backend_(runtime, rollout_model_),
        weight_sync_(runtime, policy, rollout_model_) {
    if (foreign) {
      foreign_ = foreign->on_cpu(policy, context_);
    } else {
      shared_blocks_ = std::make_unique<CpuBlocks>(context_, *trainer_model_);
    }
    trainer_ = std::make_unique<Trainer>(
        context_, policy, trainer_model_ ? *trainer_model_ : rollout_model_,
        shared_blocks_ ? *shared_blocks_ : *foreign_.blocks, [this] { pack(); },
        options.trainer.training);
    if (options.with_reference) {
      reference_ = std::make_unique<Parameters>(policy.config());
      std::copy_n(policy.values(), policy.layout().total, reference_->values());
      reference_model_ = std::make_unique<PackedModel>(*reference_, PackedModel::Options{});
      reference_model_->refresh(context_, {});
      reference_blocks_ = std::make_unique<CpuBlocks>(context_, *reference_model_);
    }
  }

  RolloutBackend& backend() override { return backend_; }
  Trainer& trainer() override { return *trainer_; }
  void refresh_trainer(const RacMasks& masks) override {
    trainer_masks_ = masks;
    pack();
  }
  void sync(const RacMasks& masks) override { weight_sync_.sync(masks); }
  std::vector<float> reference_logprobs(std::span<const TrainSequence> sequences) override {
    return trainer_->logprobs(*reference_blocks_, sequences);
  }
  void fetch_parameters() override {}

 private:
  void pack() {
    if (trainer_model_) trainer_model_->refresh(context_, trainer_masks_);
    if (foreign_.refresh) foreign_.refresh();
  }

  kernels::CpuContext context_;
  RacMasks trainer_masks_;
  std::unique_ptr<PackedModel> trainer_model_;  // null with foreign blocks
  PackedModel rollout_model_;
  CpuBackend backend_;
  WeightSync weight_sync_;
  ForeignBlocks foreign_;
  std::unique_ptr<Blocks> shared_blocks_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Parameters> reference_;
  std::unique_ptr<PackedModel> reference_model_;
  std::unique_ptr<Blocks> reference_blocks_;
};

}  // namespace

std::unique_ptr<Sides> make_cpu_sides(kernels::CpuRuntime& runtime, Parameters& policy,
                                      const SidesOptions& options, const ForeignKernels* foreign) {
  return std::make_unique<CpuSides>(runtime, policy, options, foreign);
}

std::unique_ptr<TrainerSide> make_cpu_trainer_side(kernels::CpuRuntime& runtime, Parameters& policy,
                                                   const TrainerSideOptions& options) {
  return std::make_unique<CpuTrainer>(runtime, policy, options);
}

}  // namespace quads
