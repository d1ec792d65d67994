// What an operator demands of its tensors, as errors that name the operator and the argument.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "numerics/bf16.h"

namespace quads::ops {

/// "bfloat16 [2, 64]", for messages.
std::string describe(const at::Tensor& tensor);

/// Dense, on `device`, contiguous and of `dtype`; `where` is "linear_nvfp4: x".
void require_tensor(const at::Tensor& tensor, at::ScalarType dtype, std::string_view where,
                    const at::Device& device = at::kCPU);
/// The same, of shape [.., k] with at least `min_dim` dimensions, k a positive multiple of
/// `multiple`.
void require_rows(const at::Tensor& tensor, at::ScalarType dtype, int64_t min_dim, int64_t multiple,
                  std::string_view where, const at::Device& device = at::kCPU);
/// A mask [k] of booleans.
void require_mask(const at::Tensor& mask, int64_t k, std::string_view where,
                  const at::Device& device = at::kCPU);

/// Rows of a tensor [.., k].
inline int64_t num_rows(const at::Tensor& tensor) {
  return tensor.size(-1) == 0 ? 0 : tensor.numel() / tensor.size(-1);
}

inline const Bf16* bf16_data(const at::Tensor& tensor) {
  return static_cast<const Bf16*>(tensor.const_data_ptr());
}
inline Bf16* mutable_bf16_data(const at::Tensor& tensor) {
  return static_cast<Bf16*>(tensor.mutable_data_ptr());
}

}  // namespace quads::ops
