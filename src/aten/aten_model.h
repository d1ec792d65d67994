// A model's blocks as functions of tensors, differentiable by autograd.
#pragma once

#include <span>

#include "aten/aten_weights.h"
#include "model/blocks.h"
#include "model/packed_model.h"

namespace quads {

/// Some whole sequences of a batch, at one layer.
struct SequenceRows {
  int64_t begin, rows;                  // rows of the batch
  std::span<const int64_t> cu_seqlens;  // [sequences + 1], offsets of the batch
  const int64_t* positions;             // [rows]
  const float* cos;                     // [positions][head_dim / 2]
  const float* sin;
  const int32_t* replay_routing;  // [rows, top_k] or null
  int32_t* record_routing;        // the same
};

class AtenModel {
 public:
  explicit AtenModel(const PackedModel& model) : model_(model), weights_(model) {}

  const PackedModel& packed() const { return model_; }
  const ParameterLayout& layout() const { return model_.parameters().layout(); }
  int64_t hidden() const { return model_.config().hidden_size; }
  AtenWeights& weights() { return weights_; }
  /// The weights themselves, without gradients.
  WeightSource plain_weights() const;

  // x and the results are FP32 [rows, hidden].
  at::Tensor attention(int64_t layer, const SequenceRows& rows, const at::Tensor& x,
                       const WeightSource& weight) const;
  at::Tensor ffn(int64_t layer, const SequenceRows& rows, const at::Tensor& x,
                 const WeightSource& weight) const;
  /// log softmax(inv_temperature * logits), FP32 [rows, vocab], of rows x [rows, hidden].
  at::Tensor log_softmax(const at::Tensor& x, float inv_temperature,
                         const WeightSource& weight) const;

 private:
  const ParameterLayout::Layer& layer_of(int64_t layer) const {
    return layout().layers[static_cast<size_t>(layer)];
  }
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const;

  const PackedModel& model_;
  AtenWeights weights_;
};

// Tensors on memory of the caller; int32 values are copied.
at::Tensor wrap(const float* x, at::IntArrayRef sizes);
at::Tensor wrap(const int64_t* x, int64_t n);
at::Tensor wrap(const int32_t* x, int64_t n);

}  // namespace quads
