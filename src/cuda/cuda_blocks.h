// The trainer's blocks on a GPU: whole sequences forward, with the bits of the rollout's scores,
// and backward. Like the CPU's the backward recomputes a block from its input, goes straight
// through every rounding, and multiplies BF16 operands, those that the forward's product stands
// for; its sums have an order of their own. A second run gives the same bits.
#pragma once

#include <memory>
#include <span>

#include "cuda/device_blocks.h"
#include "kernels/cuda/gradients/attention_backward.h"
#include "model/blocks.h"

namespace quads::cuda {

class CudaBlocks : public Blocks {
 public:
  /// Logits held at a time, in elements: 512 MB, so that adding to a large head's gradient costs
  /// little.
  static constexpr int64_t kDefaultLogits = int64_t{1} << 27;

  /// On the stream of `model`, which must outlive the blocks and be refreshed. A batch's pages and
  /// tables are not looked at: the blocks have their own. Memory grows with the largest batch.
  CudaBlocks(cudaStream_t stream, const CudaModel& model, int64_t max_logits = kDefaultLogits);
  ~CudaBlocks() override;

  /// Told of every launch from now on; null: no longer.
  void observe(kernels::cuda::LaunchObserver* observer) { context_.observer = observer; }

  float* activations(int64_t elements) override;
  int64_t num_layers() const override { return model_.config().num_hidden_layers; }
  int64_t hidden() const override { return model_.config().hidden_size; }

  /// Takes a batch: the calls that follow, until the next embed, must be of the same. Error on
  /// tokens out of range, rows that are not whole sequences, and sequences beyond the model's
  /// positions.
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
  struct Batch;
  struct HeadRows;
  struct Scratch;

  void take(const RowBatch& batch);
  void take(const Targets& targets);
  void require_taken(const RowBatch& batch) const;
  /// Rows of logits held at a time.
  int64_t logits_rows() const;
  Scratch& scratch();
  float* gradient(int64_t parameter, float* grads) const;
  void add_vector_gradient(const float* partials, int64_t rows, int64_t parameter, float* grads);
  /// The values of quantised weights, valid until the next call.
  const Bf16* dequantise(const DeviceExperts& experts, const DeviceSite& input);
  /// What the input that was quantised last stands for: [slots, width] by sorted row.
  void image_values(const DeviceSite& site, const DeviceSlots& slots, int64_t width, Bf16* values);
  /// Backward of experts, whose first matrices are `gate_up` and `down`: dinput [slots, hidden] by
  /// sorted row, dweights [slots].
  void experts_backward(const DeviceFfn& ffn, const DeviceSlots& slots,
                        std::span<const int64_t> gate_up, std::span<const int64_t> down,
                        const float* dy, float* grads, float* dinput, float* dweights);
  void route_backward(int64_t layer, float* grads, float* dh);

  const CudaModel& model_;
  const ParameterLayout layout_;
  CudaContext context_;
  int64_t max_logits_;
  DeviceArray<float> activations_;
  int64_t max_rows_ = 0;
  std::unique_ptr<DeviceBlocks> forward_;  // and the rest: of max_rows_
  std::unique_ptr<Scratch> scratch_;       // made by the first backward
  std::unique_ptr<Batch> batch_;
  std::unique_ptr<HeadRows> head_;
  DeviceArray<uint8_t> sample_scratch_;
  DeviceArray<int32_t> first_bad_row_;
  DeviceArray<Bf16> kv_;  // of one layer
};

}  // namespace quads::cuda
