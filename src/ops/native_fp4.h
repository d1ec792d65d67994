// Operands of block-scaled FP4 products as PyTorch's `_scaled_mm` and `_scaled_grouped_mm` take
// them (kernels/native_fp4/layout.h), and their product: on chips with FP4 units by those, on the
// CPU by an emulation that reads the same buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "kernels/native_fp4/augmented_k.h"

namespace quads::ops {

/// A quantised weight to its native layout. codes uint8 [groups, n, k / 2], block_scales
/// float8_e4m3fn [groups, n, k / 16] (quantize_nvfp4's), n a multiple of 16; channel_mask bool [k]:
/// what activations compensate. Gives codes uint8 [groups, n, k' / 2] and block scales
/// float8_e4m3fn [groups, roundup(n, 128) * columns]; global scales stay as they are.
std::tuple<at::Tensor, at::Tensor> native_fp4_weight(const at::Tensor& codes,
                                                     const at::Tensor& block_scales,
                                                     const std::optional<at::Tensor>& channel_mask);

/// Rows x [rows, k] BF16, sorted by group, offsets int32 [groups] the groups' ends, quantised with
/// a global scale a row: codes uint8 [rows, k' / 2], block scales float8_e4m3fn
/// [scale_rows_bound, columns], row scales FP32 [rows]. Error on a NaN or an infinity, with its
/// row.
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_fp4_rows(
    const at::Tensor& x, const at::Tensor& offsets, const std::optional<at::Tensor>& channel_mask);

/// What both of these demand of their arguments, on `device`.
void check_native_fp4_weight(const at::Tensor& codes, const at::Tensor& block_scales,
                             const std::optional<at::Tensor>& channel_mask,
                             const at::Device& device);
void check_native_fp4_rows(const at::Tensor& x, const at::Tensor& offsets,
                           const std::optional<at::Tensor>& channel_mask, const at::Device& device);
/// Of a checked mask on the CPU.
kernels::native_fp4::AugmentedK augmented_k(int64_t k,
                                            const std::optional<at::Tensor>& channel_mask);

/// What a product is made of: the results of the two above, global scales FP32 [groups], offsets.
struct NativeFp4Operands {
  const at::Tensor &codes, &block_scales, &row_scales;
  const at::Tensor &weight_codes, &weight_block_scales, &weight_global_scales;
  const at::Tensor& offsets;
};
struct NativeFp4Sizes {
  int64_t rows, n, k, groups;  // k is k'
};
/// Error unless the operands fit each other, on `device`. The values of offsets are not looked at.
NativeFp4Sizes check_native_fp4(const NativeFp4Operands& operands, const at::Device& device);

/// The rows' scales, onto a product that was rounded to BF16: powers of two, so nothing is rounded
/// again.
at::Tensor scale_native_fp4_rows(const at::Tensor& y, const at::Tensor& row_scales);

/// y [rows, n] BF16: sums of FP32 (kernels/native_fp4/emulate.h says in which order), times the
/// weight's global scale, rounded to BF16, times the row's scale.
at::Tensor native_fp4_product(const NativeFp4Operands& operands);

}  // namespace quads::ops
