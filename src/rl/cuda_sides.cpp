// Both sides on a GPU: masters, moments and gradients beside the weights of both sides.
#include <fmt/format.h>

#include "cuda/cuda_backend.h"
#include "cuda/cuda_blocks.h"
#include "cuda/cuda_optimizer.h"
#include "cuda/device.h"
#include "cuda/memory_plan.h"
#include "kernels/cuda/route.h"
#include "rl/sides.h"

namespace quads {
namespace {

using cuda::CudaBackend;
using cuda::CudaBlocks;
using cuda::CudaModel;
using cuda::CudaOptimizer;
using cuda::DeviceParameters;
using cuda::HostParameters;

// What the sides take, but for the rollout's scratch.
void add_trainer(cuda::MemoryPlan& plan, const Parameters& policy,
                 const TrainerSideOptions& options) {
  const ParameterLayout& layout = policy.layout();
  plan.add("parameters (BF16)", layout.total * 2);
  plan.add("masters, moments and gradients (FP32)", layout.total * 4 * 4);
  plan.add("the trainer's weights",
           cuda::model_bytes(layout, {policy.config(), options.precision, options.scope}, true));
  const Trainer::Options& training = options.training;
  const int64_t rows = std::min(training.max_tokens, kernels::cuda::kMaxSlots);
  const int64_t vocab = policy.config().vocab_size;
  const int64_t logits = std::min(rows * vocab, std::max(CudaBlocks::kDefaultLogits, vocab));
  plan.add(fmt::format("micro-batches of {} rows", rows),
           rows * micro_batch_row_bytes(policy.config(), training.checkpoint_activations) +
               logits * static_cast<int64_t>(sizeof(float) + sizeof(Bf16)));
}

cuda::MemoryPlan plan_of(const Parameters& policy, const SidesOptions& options) {
  const ParameterLayout& layout = policy.layout();
  const auto model = [&](const Precision& precision) {
    return cuda::model_bytes(layout, {policy.config(), precision, options.trainer.scope}, true);
  };
  cuda::MemoryPlan plan;
  add_trainer(plan, policy, options.trainer);
  plan.add("the rollout's weights", model(options.rollout));
  if (options.with_reference) plan.add("the reference policy", layout.total * 2 + model({}));
  plan.add("KV pages", options.kv_memory);
  return plan;
}

class CudaTrainer : public TrainerSide {
 public:
  CudaTrainer(Parameters& policy, const TrainerSideOptions& options, std::string memory_plan)
      : policy_(policy),
        memory_plan_(std::move(memory_plan)),
        values_(HostParameters(policy), stream_.get()),
        model_(stream_.get(), values_, options.precision, options.scope, options.max_context),
        blocks_(stream_.get(), model_),
        trainer_(
            blocks_,
            std::make_unique<CudaOptimizer>(stream_.get(), values_, options.training.adamw),
            SequenceBatch(policy.config()), [this] { model_.refresh(masks_); }, options.training) {}

  const DeviceParameters& values() const { return values_; }
  Trainer& trainer() override { return trainer_; }
  void refresh_trainer(const RacMasks& masks) override {
    masks_ = masks;
    model_.refresh(masks_);
  }
  void fetch_parameters() override { values_.download(policy_, stream_.get()); }
  std::string memory_plan() const override { return memory_plan_; }

 private:
  Parameters& policy_;
  std::string memory_plan_;
  cuda::Stream stream_;
  DeviceParameters values_;
  RacMasks masks_;
  CudaModel model_;
  CudaBlocks blocks_;
  Trainer trainer_;
};

class CudaSides : public Sides {
 public:
  CudaSides(Parameters& policy, const SidesOptions& options, std::string memory_plan)
      : trainer_(policy, options.trainer, std::move(memory_plan)),
        backend_(trainer_.values(), {.precision = options.rollout,
                                     .scope = options.trainer.scope,
                                     .max_running = options.max_running,
                                     .max_context = options.trainer.max_context,
                                     .prefill_chunk = options.prefill_chunk}) {
    if (options.with_reference) {
      reference_ = std::make_unique<Reference>(policy, options.trainer.max_context);
    }
  }

  RolloutBackend& backend() override { return backend_; }
  Trainer& trainer() override { return trainer_.trainer(); }
  void refresh_trainer(const RacMasks& masks) override { trainer_.refresh_trainer(masks); }
  void sync(const RacMasks& masks) override { backend_.refresh(masks); }
  std::vector<float> reference_logprobs(std::span<const TrainSequence> sequences) override {
    return trainer().logprobs(reference_->blocks, sequences);
  }
  void fetch_parameters() override { trainer_.fetch_parameters(); }
  std::string memory_plan() const override { return trainer_.memory_plan(); }

 private:
  struct Reference {
    Reference(const Parameters& policy, int64_t max_context)
        : values(HostParameters(policy), stream.get()),
          model(stream.get(), values, {}, {}, max_context),
          blocks(stream.get(), model) {
      model.refresh({});
    }
    cuda::Stream stream;
    DeviceParameters values;
    CudaModel model;
    CudaBlocks blocks;
  };

  CudaTrainer trainer_;
  CudaBackend backend_;
  std::unique_ptr<Reference> reference_;
};

}  // namespace

std::unique_ptr<Sides> make_cuda_sides(Parameters& policy, const SidesOptions& options) {
  cuda::require_device();
  const cuda::MemoryPlan plan = plan_of(policy, options);
  plan.require_fits(cuda::free_bytes());
  return std::make_unique<CudaSides>(policy, options, plan.describe());
}

std::unique_ptr<TrainerSide> make_cuda_trainer_side(Parameters& policy,
                                                    const TrainerSideOptions& options) {
  cuda::require_device();
  cuda::MemoryPlan plan;
  add_trainer(plan, policy, options);
  plan.require_fits(cuda::free_bytes());
  return std::make_unique<CudaTrainer>(policy, options, plan.describe());
}

}  // namespace quads
