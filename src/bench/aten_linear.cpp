#include "bench/aten_linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

namespace quads::bench {

struct AtenLinear::Tensors {
  at::Tensor weight, x;
};

AtenLinear::AtenLinear(const Bf16* weight, int64_t n, int64_t k, const Bf16* x, int64_t m) {
  const c10::InferenceMode inference;
  const auto view = [](const Bf16* data, int64_t rows, int64_t cols) {
    return at::from_blob(const_cast<Bf16*>(data), {rows, cols},
                         at::TensorOptions().dtype(at::kBFloat16));
  };
  tensors_ = std::make_unique<Tensors>(Tensors{view(weight, n, k), view(x, m, k)});
}

AtenLinear::~AtenLinear() = default;
AtenLinear::AtenLinear(AtenLinear&&) noexcept = default;

void AtenLinear::run() const {
  const c10::InferenceMode inference;
  const at::Tensor y = at::linear(tensors_->x, tensors_->weight);
}

void AtenLinear::set_num_threads(int threads) { at::set_num_threads(threads); }

std::string torch_version() { return TORCH_VERSION; }

}  // namespace quads::bench
