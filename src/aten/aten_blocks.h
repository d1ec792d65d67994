// A trainer's blocks through ATen's own matrix products and attention: an engine with its own
// rounding, as in a training stack beside a rollout engine (--trainer-kernels aten). One structure
// for CPU and GPU; AtenDevice is what differs.
//
// Operands are what the precision says (weights dequantised, activations fake-quantised); between
// operators values are BF16, the residual stream FP32. Gradients come from autograd, straight
// through the rounding. On a CPU BF16 products run in BF16 where it has them (ops/matmul.h), so
// results differ between machines.
#pragma once

#include <memory>

#include "aten/aten_engine.h"

namespace quads {

class AtenDevice;
class AtenModel;

class AtenBlocks : public CopyingBlocks {
 public:
  /// Error if the device's precision compensates residuals: that needs the shared kernels.
  explicit AtenBlocks(std::unique_ptr<AtenDevice> device);
  /// On the CPU. `model` must outlive this object and be refreshed. The context's threads each take
  /// some sequences, so ATen's own threads, which belong to the process, are switched off; results
  /// do not depend on the number of threads.
  AtenBlocks(const kernels::CpuContext& context, const PackedModel& model);
  ~AtenBlocks() override;

  void refresh() override;

  float* activations(int64_t elements) override;
  int64_t num_layers() const override;
  int64_t hidden() const override;

  // Batches are whole sequences (cu_seqlens); statistics of residuals are not gathered (error). On
  // a GPU the calls that follow an embed, until the next, must be of the same batch.
  void embed(const RowBatch& batch, float* x) override;
  void attention_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) override;
  void ffn_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) override;
  void head_forward(const Targets& targets, const float* x, int64_t rows, float* logp,
                    float* entropy) override;
  void embed_backward(const RowBatch& batch, const float* dx, float* grads) override;
  void attention_backward(int64_t layer, const RowBatch& batch, const float* x, const float* dy,
                          float* grads, float* dx) override;
  void ffn_backward(int64_t layer, const RowBatch& batch, const float* x, const float* dy,
                    float* grads, float* dx) override;
  void head_backward(const Targets& targets, const float* x, int64_t rows, const float* dlogp,
                     float* grads, float* dx) override;

 private:
  struct Memory;

  // These keep torch's headers out of this one.
  std::unique_ptr<AtenDevice> device_;
  std::unique_ptr<AtenModel> model_;
  std::unique_ptr<Memory> activations_;
};

}  // namespace quads
