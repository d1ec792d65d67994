// A model's blocks on the CPU, with this project's own kernels: what rollouts run on, and the
// trainer too with --trainer-kernels shared.
#pragma once

#include "model/blocks.h"
#include "model/packed_model.h"

namespace quads {

class CpuBlocks : public Blocks {
 public:
  /// `model` must outlive this object, be refreshed, and have transposes if a backward is called.
  CpuBlocks(const kernels::CpuContext& context, const PackedModel& model)
      : context_(context), model_(model) {}

  int64_t num_layers() const override { return model_.num_layers(); }
  int64_t hidden() const override { return model_.config().hidden_size; }

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
  kernels::MoeRouting routing(int64_t layer, const RowBatch& batch) const;
  kernels::AttentionRows attention_rows(int64_t layer, const RowBatch& batch) const;

  kernels::CpuContext context_;
  const PackedModel& model_;
};

}  // namespace quads
