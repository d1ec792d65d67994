// The rows of a step whose next token is asked for, one after another.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

/// Device pointers, 16-byte aligned. y[i] = x[indices[i]], rows of d elements, d a multiple of 4.
struct GatherRows {
  const float* x = nullptr;          // [*, d]
  const int32_t* indices = nullptr;  // [rows], each in range
  int64_t rows = 0;
  int64_t d = 0;
  float* y = nullptr;  // [rows, d]
};

/// Launches one kernel. Error on sizes out of range.
void gather_rows(const CudaContext& context, const GatherRows& args);

}  // namespace quads::kernels::cuda
