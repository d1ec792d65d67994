// Products of BF16 operands by ATen: in BF16 where that is faster, else in FP32.
#pragma once

#include <ATen/core/Tensor.h>

namespace quads::ops {

/// BF16 for operands of at least 2^20 elements on CPUs with BF16 dot products (AVX512-BF16, and
/// thereby all with AMX), else FP32: without them ATen's BF16 product runs at a tenth to a
/// thirtieth of its FP32 one, and with them each new number of rows costs a compilation (oneDNN's),
/// which a small product does not earn back. Either way the operands are BF16 values and the sums
/// are FP32.
at::ScalarType matmul_dtype(int64_t elements);

/// x [m, k] w^T [n, k], rounded to BF16. Both BF16 or of matmul_dtype(w.numel()) (with
/// BF16 values).
at::Tensor linear_bf16(const at::Tensor& x, const at::Tensor& w);

/// a [m, k] b [k, n] of BF16 values as FP32 (on the CPU rounded to BF16 where the product is made
/// in BF16).
at::Tensor product_f32(const at::Tensor& a, const at::Tensor& b);

}  // namespace quads::ops
