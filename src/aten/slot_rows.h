// Rows to their slots and back, by a permutation: autograd's own gather would add gradients with
// atomics on a GPU, in BF16 and in any order.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

namespace quads {

/// apply(x [rows, width], order, inverse, choices): row i of the result [rows * choices, width] is
/// that of slot order[i], where slot s is of row s / choices; `inverse` undoes the order.
class SlotRows : public torch::autograd::Function<SlotRows> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& order, const at::Tensor& inverse, int64_t choices) {
    context->save_for_backward({inverse});
    context->saved_data["choices"] = choices;
    return x.index_select(0, choices == 1 ? order : order.floor_divide(choices));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const int64_t choices = context->saved_data["choices"].toInt();
    at::Tensor dx = dy[0].index_select(0, context->get_saved_variables()[0]);
    if (choices > 1) dx = dx.view({-1, choices, dx.size(1)}).sum(1);
    return {dx, {}, {}, {}};
  }
};

}  // namespace quads
