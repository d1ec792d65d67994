// Sums of a dense product to y, with bias and residual.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/dense/dense_launch.h"
#include "kernels/cuda/experts/decode.cuh"

namespace quads::kernels::cuda {

__device__ __forceinline__ int dense_rows(const DenseArgs& args) {
  return args.row_count == nullptr ? args.rows : min(args.rows, *args.row_count);
}
/// Behind the last row of the tile that begins at `first_row`.
__device__ __forceinline__ int tile_end(const DenseArgs& args, int first_row) {
  return min(dense_rows(args), first_row + args.tile_rows);
}

/// What store_dense adds to four neighbours; asked for early, so that its latency is hidden.
__device__ __forceinline__ float4 load_residual(const DenseArgs& args, int64_t row, int column) {
  float4 r = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (args.residual == nullptr || column >= args.n) return r;
  const float* from = args.residual + row * args.n + column;
  if (args.n % 4 == 0) return *reinterpret_cast<const float4*>(from);
  r.x = from[0];
  if (column + 1 < args.n) r.y = from[1];
  if (column + 2 < args.n) r.z = from[2];
  if (column + 3 < args.n) r.w = from[3];
  return r;
}

/// With subnormals as zeros, as the L2 cache adds (add_in_place).
__device__ __forceinline__ float add_residual(float residual, float sum) {
  float y;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(residual), "f"(sum));
  return y;
}

/// Four neighbours of a row of y from column `column` on, a multiple of 4.
__device__ __forceinline__ void store_dense(const DenseArgs& args, int64_t row, int column,
                                            float4 sums, float4 residual) {
  if (column >= args.n) return;
  float y[4] = {sums.x, sums.y, sums.z, sums.w};
  const float r[4] = {residual.x, residual.y, residual.z, residual.w};
  const int64_t at = row * args.n + column;
  const bool whole = args.n % 4 == 0;  // then all of them are there, and aligned
  if (args.bias != nullptr) {
    const uint16_t* bias = args.bias + column;
    if (whole) {
      const uint2 four = *reinterpret_cast<const uint2*>(bias);
      y[0] = y[0] + __uint_as_float(four.x << 16);
      y[1] = y[1] + __uint_as_float(four.x & 0xFFFF0000U);
      y[2] = y[2] + __uint_as_float(four.y << 16);
      y[3] = y[3] + __uint_as_float(four.y & 0xFFFF0000U);
    } else {
      for (int i = 0; i < 4; ++i) {
        if (column + i < args.n) {
          y[i] = y[i] + __uint_as_float(static_cast<uint32_t>(bias[i]) << 16);
        }
      }
    }
  }
  if (args.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = add_residual(r[i], y[i]);
  }
  if (args.y_is_bf16) {
    auto* to = static_cast<uint16_t*>(args.y) + at;
    const uint32_t low = as_bits(__floats2bfloat162_rn(y[0], y[1]));
    const uint32_t high = as_bits(__floats2bfloat162_rn(y[2], y[3]));
    if (whole) {
      *reinterpret_cast<uint2*>(to) = make_uint2(low, high);
    } else {
      const uint32_t words[2] = {low, high};
      for (int i = 0; i < 4; ++i) {
        if (column + i < args.n) to[i] = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
      }
    }
    return;
  }
  auto* to = static_cast<float*>(args.y) + at;
  if (whole) {
    *reinterpret_cast<float4*>(to) = make_float4(y[0], y[1], y[2], y[3]);
  } else {
    for (int i = 0; i < 4; ++i) {
      if (column + i < args.n) to[i] = y[i];
    }
  }
}

}  // namespace quads::kernels::cuda
