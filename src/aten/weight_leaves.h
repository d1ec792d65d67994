// The weights of one block with gradients recorded, for one backward.
#pragma once

#include "aten/aten_device.h"

namespace quads {

class WeightLeaves : public WeightSource {
 public:
  /// `device` must outlive this object.
  explicit WeightLeaves(const AtenDevice& device) : device_(device) {}

  at::Tensor of(int64_t parameter) const override;
  at::Tensor of(std::span<const int64_t> experts) const override;

  /// Finds the gradients of sum(dy * y); returns that of `input`.
  at::Tensor backward(const at::Tensor& y, const at::Tensor& dy, const at::Tensor& input);
  /// Adds those of the weights to the flat array `grads`, and lets go of them.
  void add_to(float* grads);

 private:
  struct Leaf {
    int64_t parameter;  // the first of a stack's
    int64_t stride;     // elements from an expert's gradient to the next; 0: one matrix
    at::Tensor tensor;
  };
  at::Tensor add(int64_t parameter, int64_t stride, const at::Tensor& values) const;

  const AtenDevice& device_;
  mutable std::vector<Leaf> leaves_;  // as they are asked for
  std::vector<at::Tensor> gradients_;
};

}  // namespace quads
