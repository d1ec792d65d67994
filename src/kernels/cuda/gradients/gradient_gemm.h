// The two products of a linear layer's backward: dx = dy W and dW += dy^T x, for one weight or for
// the weights of experts, whose rows lie one after the other.
//
// Operands are BF16, sums FP32 in the tensor core's order over k16 steps, added up in parts of what
// is summed, in rising order: of 256 by mma.sync, of 1024 by wgmma. Which of the two is a function
// of the sizes and the chip. Nothing depends on timing: a second run gives the same bits. Operands
// are finite: a value that is not may reach the sums of a neighbouring expert, too.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

enum class GradientKernel : uint8_t {
  kChosen,  // wgmma where there is work for a whole chip that has it
  kMma,
  kWgmma,  // Hopper only; matrices of experts lie one behind the other
};

/// Which rows belong to which matrix.
struct ExpertRows {
  int experts = 1;                   // 1..kMaxExperts (grouped_gemm.h)
  const int32_t* offsets = nullptr;  // [experts + 1] on the device; null: one, with all rows
  int64_t rows = 0;                  // of all experts
};

/// Device pointers, 16-byte aligned. dx [rows, n] = dy [rows, k] W [k, n], matrix e at
/// weight + e * stride.
struct InputGradient {
  ExpertRows experts;
  const Bf16* dy = nullptr;
  int64_t lddy = 0;  // a multiple of 8
  const Bf16* weight = nullptr;
  int64_t stride = 0;  // elements, a multiple of 8
  int64_t n = 0;       // a multiple of 8
  int64_t k = 0;       // a multiple of 8
  float* dx = nullptr;
  GradientKernel kernel = GradientKernel::kChosen;
};

/// Launches one kernel. Error on sizes out of range, and on a kernel that cannot run.
void input_gradient(const CudaContext& context, const InputGradient& args);

/// Device pointers, 16-byte aligned. dw [m, n] += dy [rows, m]^T x [rows, n], matrix e at
/// dw + e * stride.
struct WeightGradient {
  ExpertRows experts;
  const Bf16* dy = nullptr;
  int64_t lddy = 0;  // a multiple of 8
  const Bf16* x = nullptr;
  int64_t m = 0;  // a multiple of 8
  int64_t n = 0;  // a multiple of 8
  float* dw = nullptr;
  int64_t stride = 0;
  GradientKernel kernel = GradientKernel::kChosen;
};

/// Launches one kernel. Error on sizes out of range.
void weight_gradient(const CudaContext& context, const WeightGradient& args);

}  // namespace quads::kernels::cuda
