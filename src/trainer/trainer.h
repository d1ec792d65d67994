// The trainer: forward with what the backward needs, a loss given by the caller, backward, update.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/cpu_blocks.h"
#include "trainer/micro_batch.h"
#include "trainer/optimizer.h"
#include "trainer/sequence_batch.h"

namespace quads {

/// What a loss sees of a micro-batch: sequences [first, first + offsets.size() - 1) of the list
/// that was given, their targets' log-probs and entropies, concatenated.
struct MicroBatch {
  int64_t first;
  std::span<const int64_t> offsets;  // [sequences + 1] into the targets
  std::span<const float> logprobs;
  std::span<const float> entropies;
};

/// Fills dlogp (zeroed) with d loss / d logp of each target.
using LossFunction = std::function<void(const MicroBatch&, std::span<float> dlogp)>;

class Trainer {
 public:
  struct Options {
    AdamwOptions adamw = {};
    float temperature = 1.0F;              // of the log-probs: the rollout's
    int64_t max_tokens = kMicroBatchRows;  // rows of a micro-batch
    bool checkpoint_activations = false;   // keep layers' inputs only, recompute the attention
  };

  /// `blocks` computes under the trainer's precision, where `optimizer` has its state; `batch` lays
  /// sequences out for them. `update_weights` is called after every change of the parameters (it
  /// repacks them).
  Trainer(Blocks& blocks, std::unique_ptr<Optimizer> optimizer, SequenceBatch batch,
          std::function<void()> update_weights, const Options& options);
  /// On the CPU; `model` gives shapes.
  Trainer(const kernels::CpuContext& context, Parameters& parameters, PackedModel& model,
          Blocks& blocks, std::function<void()> update_weights, const Options& options);

  /// Adds the gradients of one mini-batch, in micro-batches. No update.
  void accumulate(std::span<const TrainSequence> sequences, const LossFunction& loss);
  /// One update with the accumulated gradients times `grad_scale`.
  Optimizer::Result update(float lr, float grad_scale = 1.0F);

  /// Log-probs (and entropies, if not null) of all targets, concatenated; no gradients.
  std::vector<float> logprobs(std::span<const TrainSequence> sequences,
                              std::vector<float>* entropies = nullptr);
  /// The same through other blocks of the same shapes (a reference policy).
  std::vector<float> logprobs(Blocks& blocks, std::span<const TrainSequence> sequences,
                              std::vector<float>* entropies = nullptr);

  Optimizer& optimizer() { return *optimizer_; }
  const Options& options() const { return options_; }

 private:
  /// Buffers [count][rows * hidden] that the layers' inputs are kept in.
  static std::vector<float*> activation_buffers(Blocks& blocks, int64_t rows, int64_t count);
  void backward(std::span<float* const> saved, const float* dlogp, float* d0, float* d1);

  Blocks& blocks_;
  std::function<void()> update_weights_;
  Options options_;
  std::unique_ptr<Optimizer> optimizer_;
  SequenceBatch batch_;
  std::vector<float> logp_, entropy_, dlogp_;
  std::vector<int64_t> offsets_;
};

}  // namespace quads
