// AdamW on flat FP32 master weights and moments, with BF16 parameters as their image.
#pragma once

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

class Optimizer {
 public:
  /// Masters start as the parameters' values.
  Optimizer(Parameters& parameters, const AdamwOptions& options);

  /// Where gradients are accumulated: FP32, laid out as the parameters' flat array.
  float* grads() { return grads_.data(); }

  struct Result {
    double grad_norm;  // before clipping, of grads * grad_scale
    bool applied;      // false if the norm is not finite: nothing was changed then
  };
  /// One update with grads * grad_scale, clipped to max_grad_norm; writes the BF16 parameters and
  /// clears the gradients.
  Result step(const kernels::CpuContext& context, float lr, float grad_scale);
  void clear_grads(const kernels::CpuContext& context);

  // State, for checkpoints.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  AlignedBuffer<float>& master() { return master_; }
  AlignedBuffer<float>& first_moment() { return m_; }
  AlignedBuffer<float>& second_moment() { return v_; }
  /// Rewrites the BF16 parameters from the masters (after loading a checkpoint).
  void publish();

 private:
  Parameters& parameters_;
  AdamwOptions options_;
  int64_t updates_ = 0;
  AlignedBuffer<float> master_, m_, v_, grads_;
};

}  // namespace quads
