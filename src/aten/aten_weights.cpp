#include "aten/aten_weights.h"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "ops/matmul.h"
#include "ops/packed_weight.h"

namespace quads {

void AtenWeights::refresh(const kernels::CpuContext& context) {
  const ParameterLayout& layout = model_.parameters().layout();
  std::vector<const kernels::PackedMatrix*> packed(layout.parameters.size(), nullptr);
  const auto set = [&](int64_t parameter, const kernels::PackedMatrix& matrix) {
    packed[static_cast<size_t>(parameter)] = &matrix;
  };
  for (int64_t l = 0; l < model_.num_layers(); ++l) {
    const ParameterLayout::Layer& at = layout.layers[static_cast<size_t>(l)];
    set(at.qkv, model_.attention(l).qkv.weight);
    set(at.o, model_.attention(l).out.weight);
    for (size_t e = 0; e < at.gate_up.size(); ++e) {
      set(at.gate_up[e], model_.ffn(l).gate_up[e]);
      set(at.down[e], model_.ffn(l).down[e]);
    }
  }
  tensors_.resize(layout.parameters.size());
  context.parallel_for(std::ssize(tensors_), [&](int64_t task, int) {
    const auto i = static_cast<size_t>(task);
    const Parameter& p = layout.parameters[i];
    at::Tensor values;
    if (packed[i] && packed[i]->format != kernels::WeightFormat::kBf16) {
      values = ops::unpack(*packed[i]);
    } else {
      const std::vector<int64_t> shape =
          p.vector ? std::vector{p.size()} : std::vector{p.rows, p.cols};
      auto* data = const_cast<Bf16*>(model_.parameters().of(task));
      values = at::from_blob(data, shape, at::kBFloat16);
    }
    // Always a copy: the parameters change under an update before the next refresh.
    const at::ScalarType dtype = p.vector ? at::kFloat : ops::matmul_dtype(p.size());
    tensors_[i] = values.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  });
}

at::Tensor WeightLeaves::take(int64_t parameter) {
  at::Tensor leaf = weights_.at(parameter).detach().requires_grad_(true);
  parameters_.push_back(parameter);
  leaves_.push_back(leaf);
  return leaf;
}

at::Tensor WeightLeaves::backward(const at::Tensor& y, const at::Tensor& dy,
                                  const at::Tensor& input) {
  std::vector<at::Tensor> inputs = leaves_;
  inputs.push_back(input);
  gradients_ = torch::autograd::grad({y}, inputs, {dy}, /*retain_graph=*/std::nullopt,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  at::Tensor dinput = gradients_.back();
  gradients_.pop_back();
  return dinput;
}

void WeightLeaves::add_to(const ParameterLayout& layout, float* grads) const {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const at::Tensor& gradient = gradients_[i];
    if (!gradient.defined()) continue;  // an expert that no row chose
    float* sum = grads + layout.at(parameters_[i]).offset;
    at::from_blob(sum, gradient.sizes(), at::kFloat).add_(gradient);
  }
}

}  // namespace quads
