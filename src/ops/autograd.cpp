// Gradients of the registered operators. Everything goes through the dispatcher, so that a backward
// can be traced like a forward.
#include <torch/library.h>

#include "ops/operators.h"
#include "ops/straight_through.h"

namespace quads::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

OptionalTensor optional(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

at::Tensor fake_quantize_nvfp4(const at::Tensor& x, std::string_view mode) {
  static const auto op = find<FakeQuantize>("quads::fake_quantize_nvfp4");
  const at::AutoDispatchBelowAutograd below;
  return op.call(x, mode);
}

at::Tensor fake_quantize_fp8(const at::Tensor& x, std::string_view mode) {
  static const auto op = find<FakeQuantize>("quads::fake_quantize_fp8");
  const at::AutoDispatchBelowAutograd below;
  return op.call(x, mode);
}

template <FakeQuantize kQuantize>
at::Tensor fake_quantize_autograd(const at::Tensor& x, std::string_view mode) {
  return StraightThrough::apply(x, kQuantize(x, mode));
}

class Linear : public torch::autograd::Function<Linear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const OptionalTensor& channel_mask, bool weight_only) {
    static const auto op = find<LinearNvfp4>("quads::linear_nvfp4");
    ctx->save_for_backward({x, weight, channel_mask.value_or(at::Tensor())});
    ctx->saved_data["weight_only"] = weight_only;
    const at::AutoDispatchBelowAutograd below;
    return op.call(x, weight, channel_mask, weight_only);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    static const auto op = find<LinearNvfp4Backward>("quads::linear_nvfp4_backward");
    const variable_list saved = ctx->get_saved_variables();
    const auto [dx, dweight] = op.call(dy[0], saved[0], saved[1], optional(saved[2]),
                                       ctx->saved_data["weight_only"].toBool());
    return {dx, dweight, at::Tensor(), at::Tensor()};
  }
};

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& weight,
                           const OptionalTensor& channel_mask, bool weight_only) {
  return Linear::apply(x, weight, channel_mask, weight_only);
}

class Experts : public torch::autograd::Function<Experts> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gate_up,
                            const at::Tensor& down, const at::Tensor& topk_ids,
                            const at::Tensor& topk_weights, std::string_view precision,
                            const OptionalTensor& gate_up_mask, const OptionalTensor& down_mask) {
    static const auto op = find<GroupedExperts>("quads::grouped_experts");
    ctx->save_for_backward({x, gate_up, down, topk_ids, topk_weights,
                            gate_up_mask.value_or(at::Tensor()), down_mask.value_or(at::Tensor())});
    ctx->saved_data["precision"] = std::string(precision);
    const at::AutoDispatchBelowAutograd below;
    return op.call(x, gate_up, down, topk_ids, topk_weights, precision, gate_up_mask, down_mask);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    static const auto op = find<GroupedExpertsBackward>("quads::grouped_experts_backward");
    const variable_list saved = ctx->get_saved_variables();
    const std::string& precision = ctx->saved_data["precision"].toStringRef();
    const auto [dx, dgate_up, ddown, dweights] =
        op.call(dy[0], saved[0], saved[1], saved[2], saved[3], saved[4], precision,
                optional(saved[5]), optional(saved[6]));
    const at::Tensor none;
    return {dx, dgate_up, ddown, none, dweights, none, none, none};
  }
};

at::Tensor experts_autograd(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
                            const at::Tensor& topk_ids, const at::Tensor& topk_weights,
                            std::string_view precision, const OptionalTensor& gate_up_mask,
                            const OptionalTensor& down_mask) {
  return Experts::apply(x, gate_up, down, topk_ids, topk_weights, precision, gate_up_mask,
                        down_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(quads, Autograd, m) {
  m.impl("fake_quantize_nvfp4", &fake_quantize_autograd<fake_quantize_nvfp4>);
  m.impl("fake_quantize_fp8", &fake_quantize_autograd<fake_quantize_fp8>);
  m.impl("linear_nvfp4", &linear_autograd);
  m.impl("grouped_experts", &experts_autograd);
}

}  // namespace quads::ops
