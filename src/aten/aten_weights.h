// A model's weights as tensors that ATen multiplies with, and the leaves that collect their
// gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "model/packed_model.h"

namespace quads {

/// Gives the tensor of a parameter (an index of the layout): norms and biases FP32, matrices [rows,
/// cols] in ops::matmul_dtype() of their size.
using WeightSource = std::function<at::Tensor(int64_t parameter)>;

class AtenWeights {
 public:
  /// `model` gives the values: what its kernels multiply with, dequantised. It must outlive this.
  explicit AtenWeights(const PackedModel& model) : model_(model) {}

  /// Takes over the model's present values; call it after each of the model's own refreshes.
  void refresh(const kernels::CpuContext& context);

  const at::Tensor& at(int64_t parameter) const { return tensors_[static_cast<size_t>(parameter)]; }

 private:
  const PackedModel& model_;
  std::vector<at::Tensor> tensors_;  // one a parameter
};

/// The weights of one block with gradients recorded, for one backward.
class WeightLeaves {
 public:
  explicit WeightLeaves(const AtenWeights& weights) : weights_(weights) {}

  at::Tensor take(int64_t parameter);

  /// Finds the gradients of sum(dy * y); returns that of `input`.
  at::Tensor backward(const at::Tensor& y, const at::Tensor& dy, const at::Tensor& input);
  /// Adds those of the weights to the flat array `grads`.
  void add_to(const ParameterLayout& layout, float* grads) const;

 private:
  const AtenWeights& weights_;
  std::vector<int64_t> parameters_;
  std::vector<at::Tensor> leaves_, gradients_;
};

}  // namespace quads
