// Both sides on a GPU: masters, moments and gradients beside the weights of both sides.
#include "rl/cuda_sides.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/cuda_blocks.h"
#include "cuda/cuda_optimizer.h"
#include "cuda/device.h"
#include "cuda/memory_plan.h"
#include "cuda/rounded_parameters.h"
#include "kernels/cuda/experts/route.h"
#include "trainer/aten_memory.h"

namespace quads {
namespace {

using cuda::CudaBackend;
using cuda::CudaBlocks;
using cuda::CudaModel;
using cuda::CudaOptimizer;
using cuda::DeviceParameters;
using cuda::ParameterSource;
using cuda::RoundedParameters;

// What the sides take, but for the rollout's scratch.
void add_trainer(cuda::MemoryPlan& plan, const ParameterSource& policy,
                 const TrainerSideOptions& options, bool foreign) {
  const ParameterLayout& layout = policy.layout();
  plan.add("parameters (BF16)", layout.total * 2);
  plan.add("masters, moments and gradients (FP32)", layout.total * 4 * 4);
  const QuantisedSites sites{policy.config(), options.precision, options.scope};
  const Trainer::Options& training = options.training;
  if (foreign) {
    plan.add("the trainer's weights (rounded)", cuda::rounded_bytes(layout, sites));
    plan.add(fmt::format("ATen's micro-batches of {} rows", training.max_tokens),
             aten_bytes(policy.config(), training.max_tokens, training.checkpoint_activations));
    return;
  }
  plan.add("the trainer's weights", cuda::model_bytes(layout, sites, true));
  const int64_t rows = std::min(training.max_tokens, kernels::cuda::kMaxSlots);
  const int64_t vocab = policy.config().vocab_size;
  const int64_t logits = std::min(rows * vocab, std::max(CudaBlocks::kDefaultLogits, vocab));
  plan.add(fmt::format("micro-batches of {} rows", rows),
           rows * micro_batch_row_bytes(policy.config(), training.checkpoint_activations) +
               logits * static_cast<int64_t>(sizeof(float) + sizeof(Bf16)));
}

cuda::MemoryPlan plan_of(const ParameterSource& policy, const SidesOptions& options, bool foreign) {
  const ParameterLayout& layout = policy.layout();
  const auto model = [&](const Precision& precision) {
    return cuda::model_bytes(layout, {policy.config(), precision, options.trainer.scope}, true);
  };
  cuda::MemoryPlan plan;
  add_trainer(plan, policy, options.trainer, foreign);
  plan.add("the rollout's weights", model(options.rollout));
  if (options.with_reference) plan.add("the reference policy", layout.total * 2 + model({}));
  plan.add("KV pages", options.kv_memory);
  return plan;
}

// What a trainer multiplies with, and what multiplies.
class TrainerKernels {
 public:
  virtual ~TrainerKernels() = default;
  virtual void refresh(const RacMasks& masks) = 0;
  virtual Blocks& blocks() = 0;
};

class SharedKernels : public TrainerKernels {
 public:
  SharedKernels(cudaStream_t stream, const DeviceParameters& values,
                const TrainerSideOptions& options)
      : model_(stream, values, options.precision, options.scope, options.max_context),
        blocks_(stream, model_) {}
  void refresh(const RacMasks& masks) override { model_.refresh(masks); }
  Blocks& blocks() override { return blocks_; }

 private:
  CudaModel model_;
  CudaBlocks blocks_;
};

class OtherKernels : public TrainerKernels {
 public:
  OtherKernels(cudaStream_t stream, const DeviceParameters& values,
               const TrainerSideOptions& options, const ForeignKernels& make)
      : weights_(stream, values, options.precision, options.scope, options.max_context,
                 aten_bytes(values.config(), options.training.max_tokens,
                            options.training.checkpoint_activations)),
        blocks_(make.on_gpu(weights_)) {}
  void refresh(const RacMasks&) override { weights_.refresh(); }
  Blocks& blocks() override { return *blocks_; }

 private:
  RoundedParameters weights_;
  std::unique_ptr<Blocks> blocks_;
};

class CudaTrainer : public TrainerSide {
 public:
  CudaTrainer(const ParameterSource& initial, Parameters* fetched,
              const TrainerSideOptions& options, const ForeignKernels* foreign,
              std::string memory_plan)
      : fetched_(fetched),
        memory_plan_(std::move(memory_plan)),
        values_(initial, stream_.get()),
        kernels_(make_kernels(options, foreign)),
        trainer_(
            kernels_->blocks(),
            std::make_unique<CudaOptimizer>(stream_.get(), values_, options.training.adamw),
            SequenceBatch(initial.config()), [this] { kernels_->refresh(masks_); },
            options.training) {}

  const DeviceParameters& values() const { return values_; }
  Trainer& trainer() override { return trainer_; }
  void refresh_trainer(const RacMasks& masks) override {
    masks_ = masks;
    kernels_->refresh(masks_);
  }
  void fetch_parameters() override {
    if (fetched_ != nullptr) values_.download(*fetched_, stream_.get());
  }
  std::string memory_plan() const override { return memory_plan_; }

 private:
  std::unique_ptr<TrainerKernels> make_kernels(const TrainerSideOptions& options,
                                               const ForeignKernels* foreign) const {
    if (foreign != nullptr) {
      return std::make_unique<OtherKernels>(stream_.get(), values_, options, *foreign);
    }
    return std::make_unique<SharedKernels>(stream_.get(), values_, options);
  }

  Parameters* fetched_;
  std::string memory_plan_;
  cuda::Stream stream_;
  DeviceParameters values_;
  RacMasks masks_;
  std::unique_ptr<TrainerKernels> kernels_;
  Trainer trainer_;
};

class CudaSides : public Sides {
 public:
  CudaSides(const ParameterSource& initial, Parameters* fetched, const SidesOptions& options,
            const ForeignKernels* foreign, std::string memory_plan)
      : trainer_(initial, fetched, options.trainer, foreign, std::move(memory_plan)),
        backend_(trainer_.values(), {.precision = options.rollout,
                                     .scope = options.trainer.scope,
                                     .max_running = options.max_running,
                                     .max_context = options.trainer.max_context,
                                     .prefill_chunk = options.prefill_chunk}) {
    if (options.with_reference) {
      reference_ = std::make_unique<Reference>(initial, options.trainer.max_context);
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
    Reference(const ParameterSource& policy, int64_t max_context)
        : values(policy, stream.get()),
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

std::unique_ptr<Sides> make_cuda_sides(const ParameterSource& initial, Parameters* fetched,
                                       const SidesOptions& options, const ForeignKernels* foreign) {
  cuda::require_device();
  const cuda::MemoryPlan plan = plan_of(initial, options, foreign != nullptr);
  plan.require_fits(cuda::free_bytes());
  return std::make_unique<CudaSides>(initial, fetched, options, foreign, plan.describe());
}

std::unique_ptr<TrainerSide> make_cuda_trainer_side(const ParameterSource& initial,
                                                    Parameters* fetched,
                                                    const TrainerSideOptions& options) {
  cuda::require_device();
  cuda::MemoryPlan plan;
  add_trainer(plan, initial, options, false);
  plan.require_fits(cuda::free_bytes());
  return std::make_unique<CudaTrainer>(initial, fetched, options, nullptr, plan.describe());
}

}  // namespace quads
