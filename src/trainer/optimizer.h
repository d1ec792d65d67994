// AdamW on flat FP32 master weights and moments, with BF16 parameters as their image.
#pragma once

#include <span>

#include "base/aligned_buffer.h"
#include "kernels/cpu/context.h"
#include "model/parameters.h"

namespace quads {

struct AdamwOptions {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float eps = 1e-8F;
  float weight_decay = 0.0F;   // decoupled; never on norms
  float max_grad_norm = 1.0F;  // 0: no clipping
  /// Round the masters to BF16 after every update, as training on BF16 weights alone does.
  bool bf16_masters = false;
};

/// Error naming the option for a value that no training can have.
void check(const AdamwOptions& options);

/// The state lies where the blocks compute: on the host or on a device.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Where gradients are accumulated: FP32, laid out as the parameters' flat array.
  virtual float* grads() = 0;

  struct Result {
    double grad_norm;  // before clipping, of grads * grad_scale
    bool applied;      // false if the norm is not finite: nothing was changed then
  };
  /// One update with grads * grad_scale, clipped to max_grad_norm; writes the BF16 parameters and
  /// clears the gradients.
  virtual Result step(float lr, float grad_scale) = 0;

  // State, for checkpoints.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  enum class State { kMaster, kFirstMoment, kSecondMoment };
  /// The host's view of a state, laid out as the flat array; valid until one is asked for again.
  virtual std::span<const float> state(State which) = 0;
  virtual void set_state(State which, std::span<const float> values) = 0;
  /// Rewrites the BF16 parameters from the masters (after loading a checkpoint).
  virtual void publish() = 0;

 protected:
  int64_t updates_ = 0;
};

class CpuOptimizer : public Optimizer {
 public:
  /// Masters start as the parameters' values.
  CpuOptimizer(const kernels::CpuContext& context, Parameters& parameters,
               const AdamwOptions& options);

  float* grads() override { return grads_.data(); }
  Result step(float lr, float grad_scale) override;
  std::span<const float> state(State which) override;
  void set_state(State which, std::span<const float> values) override;
  void publish() override;

 private:
  AlignedBuffer<float>& array(State which);
  void clear_grads();

  kernels::CpuContext context_;
  Parameters& parameters_;
  AdamwOptions options_;
  AlignedBuffer<float> master_, m_, v_, grads_;
};

/// What an update multiplies gradients with, and its bias corrections; `norm` is that of grads *
/// grad_scale, `updates` counts this one.
kernels::AdamwParams adamw_params(const AdamwOptions& options, int64_t updates, float lr,
                                  float grad_scale, double norm);

}  // namespace quads
