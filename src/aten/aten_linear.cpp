#include "aten/aten_linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>

namespace quads {
namespace {

class AtenLinear : public LinearLayer {
 public:
  AtenLinear(at::Tensor weight, at::Tensor x) : weight_(std::move(weight)), x_(std::move(x)) {}
  void run() const override {
    const c10::InferenceMode inference;
    const at::Tensor y = at::linear(x_, weight_);
  }

 private:
  at::Tensor weight_, x_;
};

at::Tensor view(const Bf16* data, int64_t rows, int64_t cols) {
  return at::from_blob(const_cast<Bf16*>(data), {rows, cols},
                       at::TensorOptions().dtype(at::kBFloat16));
}

}  // namespace

std::unique_ptr<LinearLayer> make_aten_linear(const Bf16* weight, int64_t n, int64_t k,
                                              const Bf16* x, int64_t m) {
  const c10::InferenceMode inference;
  return std::make_unique<AtenLinear>(view(weight, n, k), view(x, m, k));
}

void set_aten_threads(int threads) { at::set_num_threads(threads); }

}  // namespace quads
