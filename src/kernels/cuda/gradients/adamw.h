// The optimizer's step on the device, bit for bit the CPU's (kernels/cpu/rows_optimizer.inl.h), and
// the sums of squares behind the gradient norm.
#pragma once

#include <cstdint>

#include "kernels/adamw_params.h"
#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// Elements whose squares are summed together: in FP64, 16 chains by i % 16 in order, then the
/// tree, as RowKernels::sum_of_squares.
inline constexpr int64_t kSquaresChunk = int64_t{1} << 15;
constexpr int64_t square_chunks(int64_t count) {
  return (count + kSquaresChunk - 1) / kSquaresChunk;
}

/// squares [square_chunks(count)] of x [count]; device pointers. Launches one kernel.
void sum_squares(const CudaContext& context, const float* x, int64_t count, double* squares);

/// Consecutive elements of a parameter.
struct AdamwRange {
  int64_t begin;
  int32_t count;
  int32_t decay;  // whether weights decay
};
inline constexpr int64_t kAdamwRange = 4096;  // elements at most

/// Device pointers.
struct Adamw {
  AdamwParams params;
  bool bf16_masters = false;           // round masters to BF16 too
  const AdamwRange* ranges = nullptr;  // [range_count]
  int64_t range_count = 0;
  const float* grads = nullptr;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  Bf16* values = nullptr;
};

/// Launches one kernel.
void adamw(const CudaContext& context, const Adamw& args);

/// values = bf16(master). Launches one kernel.
void round_masters(const CudaContext& context, const float* master, int64_t count, Bf16* values);
/// master = values. Launches one kernel.
void widen_values(const CudaContext& context, const Bf16* values, int64_t count, float* master);

}  // namespace quads::kernels::cuda
