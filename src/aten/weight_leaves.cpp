#include "aten/weight_leaves.h"

#include <torch/csrc/autograd/autograd.h>

namespace quads {

at::Tensor WeightLeaves::add(int64_t parameter, int64_t stride, const at::Tensor& values) const {
  at::Tensor leaf = values.detach().requires_grad_(true);
  leaves_.push_back({parameter, stride, leaf});
  return leaf;
}

at::Tensor WeightLeaves::of(int64_t parameter) const {
  return add(parameter, 0, device_.weights().of(parameter));
}

at::Tensor WeightLeaves::of(std::span<const int64_t> experts) const {
  const ParameterLayout& layout = device_.layout();
  const Parameter& first = layout.at(experts[0]);
  const int64_t stride =
      experts.size() > 1 ? layout.at(experts[1]).offset - first.offset : first.padded_size();
  return add(experts[0], stride, device_.weights().of(experts));
}

at::Tensor WeightLeaves::backward(const at::Tensor& y, const at::Tensor& dy,
                                  const at::Tensor& input) {
  std::vector<at::Tensor> inputs;
  inputs.reserve(leaves_.size() + 1);
  for (const Leaf& leaf : leaves_) inputs.push_back(leaf.tensor);
  inputs.push_back(input);
  gradients_ = torch::autograd::grad({y}, inputs, {dy}, /*retain_graph=*/std::nullopt,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  at::Tensor dinput = gradients_.back();
  gradients_.pop_back();
  return dinput;
}

void WeightLeaves::add_to(float* grads) {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const at::Tensor& gradient = gradients_[i];
    if (!gradient.defined()) continue;  // an expert that no row chose
    const Leaf& leaf = leaves_[i];
    float* sum = grads + device_.layout().at(leaf.parameter).offset;
    if (leaf.stride == 0) {
      device_.wrap(sum, gradient.sizes()).add_(gradient);
    } else {
      device_.wrap(sum, gradient.sizes(), {leaf.stride, gradient.size(2), 1}).add_(gradient);
    }
  }
  gradients_.clear();
  leaves_.clear();
}

}  // namespace quads
