// ops/native_fp4.h on tensors of a GPU: packing on any chip, the product on chips with FP4 units.
#pragma once

#include "ops/native_fp4.h"

namespace quads::ops {

std::tuple<at::Tensor, at::Tensor> native_fp4_weight_cuda(
    const at::Tensor& codes, const at::Tensor& block_scales,
    const std::optional<at::Tensor>& channel_mask);
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_fp4_rows_cuda(
    const at::Tensor& x, const at::Tensor& offsets, const std::optional<at::Tensor>& channel_mask);
/// By `_scaled_grouped_mm` or `_scaled_mm`, as route.h has it. Error that names the compute
/// capability where there are no FP4 units.
at::Tensor native_fp4_product_cuda(const NativeFp4Operands& operands);

}  // namespace quads::ops
