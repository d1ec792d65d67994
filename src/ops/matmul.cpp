#include "ops/matmul.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

namespace quads::ops {

at::ScalarType matmul_dtype() {
  static const bool native = __builtin_cpu_supports("avx512bf16");
  return native ? at::kBFloat16 : at::kFloat;
}

at::Tensor linear_bf16(const at::Tensor& x, const at::Tensor& w) {
  return at::linear(x.to(matmul_dtype()), w.to(matmul_dtype())).to(at::kBFloat16);
}

at::Tensor product_f32(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(matmul_dtype()), b.to(matmul_dtype())).to(at::kFloat);
}

}  // namespace quads::ops
