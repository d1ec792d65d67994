// The one forward. `Blocks` is what computes a model's blocks (a device, or another library's
// kernels); forward_layers is the order in which rollout and trainer alike run them.
#pragma once

#include <cstdint>

#include "base/aligned_buffer.h"
#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/moe_block.h"
#include "model/residual_sums.h"

namespace quads {

/// Rows of a batch: tokens of any number of sequences, each with its position and the KV pages of
/// its sequence. The trainer lays whole sequences end to end and says where they start.
struct RowBatch {
  int64_t rows = 0;
  const int32_t* tokens = nullptr;  // [rows]
  /// Positions, page ids, RoPE tables; kv is layer 0's base.
  kernels::AttentionRows attention;
  int64_t kv_layer_stride =
      0;  // elements from a layer's base to the next; 0: scratch for one layer

  // Whole sequences (trainer): row offsets [sequences + 1]; null for the rollout's mixed batches.
  const int64_t* cu_seqlens = nullptr;
  int64_t sequences = 0;

  // Routing [layers][rows][top_k]: replayed, recorded, or neither.
  const int32_t* replay_routing = nullptr;
  int32_t* record_routing = nullptr;

  // Compensation statistics (rollout): rows that count [rows], null for all.
  ResidualSums* residual_sums = nullptr;
  const uint8_t* counted = nullptr;
};

/// The positions of a list of rows whose next token's distribution is wanted, and the tokens.
struct Targets {
  int64_t count = 0;
  const int64_t* rows = nullptr;    // [count], distinct
  const int32_t* tokens = nullptr;  // [count]
  float inv_temperature = 1.0F;
};

/// x, y, dx and dy are FP32 [rows, hidden]; y may be x, dx must not be dy. Backwards recompute
/// their forward from x and add the parameters' gradients to `grads`: FP32, laid out as the flat
/// parameter array (model/parameters.h).
/// Pointers are to the device's memory, but for a batch's, a target's, logp, entropy and dlogp.
class Blocks {
 public:
  virtual ~Blocks() = default;
  /// Memory for what a forward keeps and a backward passes on: at least so many elements, valid
  /// until more are asked for. The host's, unless a device has its own.
  virtual float* activations(int64_t elements);
  virtual int64_t num_layers() const = 0;
  virtual int64_t hidden() const = 0;

  virtual void embed(const RowBatch& batch, float* x) = 0;
  virtual void attention_forward(int64_t layer, const RowBatch& batch, const float* x,
                                 float* y) = 0;
  virtual void ffn_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) = 0;
  /// logp [count] and entropy [count] (may be null).
  virtual void head_forward(const Targets& targets, const float* x, int64_t rows, float* logp,
                            float* entropy) = 0;

  virtual void embed_backward(const RowBatch& batch, const float* dx, float* grads) = 0;
  virtual void attention_backward(int64_t layer, const RowBatch& batch, const float* x,
                                  const float* dy, float* grads, float* dx) = 0;
  virtual void ffn_backward(int64_t layer, const RowBatch& batch, const float* x, const float* dy,
                            float* grads, float* dx) = 0;
  /// dx [rows, hidden] (all rows) of the sum of dlogp[i] * logp[i].
  virtual void head_backward(const Targets& targets, const float* x, int64_t rows,
                             const float* dlogp, float* grads, float* dx) = 0;

 private:
  AlignedBuffer<float> activations_;
};

/// From the embeddings to the last layer's output. With `saved` null everything happens in x. With
/// `saved` [2 * layers + 1] buffers of [rows, hidden], block i reads saved[i] and writes
/// saved[i + 1], and x is not used: what a backward needs.
void forward_layers(Blocks& blocks, const RowBatch& batch, float* x, float* const* saved);

}  // namespace quads
