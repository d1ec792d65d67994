// The table of row kernels of one instruction set.
#pragma once

#include "kernels/cpu/isa_tables.h"
#include "kernels/cpu/rows_activation.inl.h"
#include "kernels/cpu/rows_elementwise.inl.h"
#include "kernels/cpu/rows_norm.inl.h"
#include "kernels/cpu/rows_optimizer.inl.h"
#include "kernels/cpu/rows_quantize.inl.h"
#include "kernels/cpu/rows_router.inl.h"
#include "kernels/cpu/rows_sample.inl.h"
#include "kernels/cpu/rows_softmax.inl.h"

namespace quads::kernels::QUADS_ISA {

RowKernels row_kernels() {
  return {
      .rmsnorm = rmsnorm,
      .rmsnorm_backward = rmsnorm_backward,
      .qk_norm_rope = qk_norm_rope,
      .qk_norm_rope_backward = qk_norm_rope_backward,
      .silu_mul = silu_mul,
      .silu_mul_backward = silu_mul_backward,
      .quantize_rows = quantize_rows,
      .operand_values = operand_values,
      .combine = combine,
      .dot = dot,
      .to_bf16 = to_bf16_row,
      .add = add,
      .route = route,
      .route_backward = route_backward,
      .log_sum_exp = log_sum_exp,
      .entropy = entropy,
      .log_softmax_backward = log_softmax_backward,
      .sample = sample,
      .adamw = adamw,
      .sum_of_squares = sum_of_squares,
  };
}

}  // namespace quads::kernels::QUADS_ISA
