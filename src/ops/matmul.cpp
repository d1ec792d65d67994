#include "ops/matmul.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include <algorithm>

namespace quads::ops {

at::ScalarType matmul_dtype(int64_t elements) {
  constexpr int64_t kWorthCompiling = int64_t{1} << 20;
  static const bool native = __builtin_cpu_supports("avx512bf16");
  return native && elements >= kWorthCompiling ? at::kBFloat16 : at::kFloat;
}

at::Tensor linear_bf16(const at::Tensor& x, const at::Tensor& w) {
  const at::ScalarType dtype = matmul_dtype(w.numel());
  return at::linear(x.to(dtype), w.to(dtype)).to(at::kBFloat16);
}

at::Tensor product_f32(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda()) return at::mm(a, b, at::kFloat);
  const at::ScalarType dtype = matmul_dtype(std::max(a.numel(), b.numel()));
  return at::mm(a.to(dtype), b.to(dtype)).to(at::kFloat);
}

}  // namespace quads::ops
