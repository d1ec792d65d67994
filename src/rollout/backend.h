// What the engine needs of a device: a model's weights, its key-value pages, and the steps that run
// on them. What a step computes is the same for every batch, whatever the device; devices differ in
// the order of their sums.
#pragma once

#include "model/residual_sums.h"
#include "rollout/requests.h"
#include "rollout/step.h"

namespace quads {

class RolloutBackend {
 public:
  struct StepOptions {
    kernels::SamplingParams sampling;
    uint64_t seed = 0;
    ResidualSums* residual_sums = nullptr;
    bool record_routing = false;
    int64_t max_context = 0;  // positions are below
  };

  virtual ~RolloutBackend() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const QuantisedSites& sites() const = 0;

  /// Quantises the parameters' present values under `masks`, in place. Error naming tensor, row and
  /// column on a value that is not finite or leaves BF16's range.
  virtual void refresh(const RacMasks& masks) = 0;

  /// Bytes of a page of kernels::kPageSize positions over all layers.
  virtual int64_t page_bytes() const = 0;
  /// Makes the pages of an engine, in place of any before.
  virtual void allocate_pages(int64_t pages) = 0;
  virtual void copy_page(int32_t from, int32_t to) = 0;

  /// Runs the rows, and fills in the draws' tokens and the log-probabilities. Error on a token
  /// outside the vocabulary.
  virtual void run(StepBatch& batch, const StepOptions& options) = 0;
  /// The experts that took a row of the last run, if its options recorded them, into out
  /// [layers][top_k]; -1 in dense layers.
  virtual void copy_routing(int64_t row, int32_t* out) const = 0;
  /// After the last step of a generation: all residuals have reached the options' sums.
  virtual void finish(const StepOptions& options) = 0;

  int64_t routing_width() const {
    return config().num_hidden_layers * config().num_experts_per_tok;
  }
  /// Threads of the host that count residuals.
  virtual int workers() const = 0;
};

}  // namespace quads
