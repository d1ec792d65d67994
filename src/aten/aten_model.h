// A model's blocks as functions of tensors, differentiable by autograd.
#pragma once

#include "aten/aten_device.h"

namespace quads {

class AtenModel {
 public:
  /// `device` must outlive the model.
  explicit AtenModel(const AtenDevice& device) : device_(device) {}

  const ModelConfig& config() const { return device_.sites().config; }

  // x and the results are FP32 [rows, hidden].
  at::Tensor attention(int64_t layer, const SequenceRows& part, const at::Tensor& x,
                       const WeightSource& weight) const;
  at::Tensor ffn(int64_t layer, const SequenceRows& part, const at::Tensor& x,
                 const WeightSource& weight) const;
  /// log softmax(inv_temperature * logits), FP32 [rows, vocab], of rows x [rows, hidden].
  at::Tensor log_softmax(const at::Tensor& x, float inv_temperature,
                         const WeightSource& weight) const;

 private:
  const ParameterLayout::Layer& layer_of(int64_t layer) const {
    return device_.layout().layers[static_cast<size_t>(layer)];
  }
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const;
  /// BF16 rows as the site's format multiplies them, with straight-through gradients.
  at::Tensor quantize(int64_t layer, Site site, const at::Tensor& x, std::string_view where) const;
  /// down(silu(gate) * up) of one matrix each, which every row takes; `middle` is down's site.
  at::Tensor expert(int64_t layer, Site middle, const at::Tensor& input, size_t index,
                    const WeightSource& weight) const;
  at::Tensor activate(int64_t layer, Site middle, const at::Tensor& gate_up) const;
  at::Tensor routed(int64_t layer, const at::Tensor& input, const at::Tensor& ids,
                    const at::Tensor& gates, const WeightSource& weight) const;

  const AtenDevice& device_;
};

}  // namespace quads
