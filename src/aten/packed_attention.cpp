#include "aten/packed_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <torch/csrc/autograd/custom_function.h>

namespace quads {
namespace {

// ATen's flash attention adds dq with atomics unless the process asks for determinism, which asked
// for as a whole would also refuse cuBLAS without an environment variable and fill every new
// tensor.
class Deterministic {
 public:
  Deterministic() {
    context_.setDeterministicFillUninitializedMemory(false);
    context_.setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~Deterministic() {
    context_.setDeterministicAlgorithms(false, /*warn_only=*/false);
    context_.setDeterministicFillUninitializedMemory(true);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  at::Context& context_ = at::globalContext();
};

class PackedAttention : public torch::autograd::Function<PackedAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const at::Tensor& offsets,
                            int64_t longest, double scale) {
    auto [out, logsumexp, state, unused, mask] =
        at::_flash_attention_forward(q, k, v, offsets, offsets, longest, longest, /*dropout_p=*/0.0,
                                     /*is_causal=*/true, /*return_debug_mask=*/false, scale);
    context->save_for_backward({q, k, v, out, logsumexp, state, unused, offsets});
    context->saved_data["longest"] = longest;
    context->saved_data["scale"] = scale;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dy) {
    const torch::autograd::variable_list s = context->get_saved_variables();
    const int64_t longest = context->saved_data["longest"].toInt();
    const Deterministic deterministic;
    auto [dq, dk, dv] = at::_flash_attention_backward(
        dy[0].contiguous(), s[0], s[1], s[2], s[3], s[4], s[7], s[7], longest, longest,
        /*dropout_p=*/0.0, /*is_causal=*/true, s[5], s[6], context->saved_data["scale"].toDouble());
    return {dq, dk, dv, {}, {}, {}};
  }
};

}  // namespace

at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const PackedSequences& sequences, double scale) {
  return PackedAttention::apply(q, k, v, sequences.offsets, sequences.longest, scale);
}

}  // namespace quads
