// Sums of a dense product to y, with bias and residual.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/dense_launch.h"

namespace quads::kernels::cuda {

__device__ __forceinline__ int dense_rows(const DenseArgs& args) {
  return args.row_count == nullptr ? args.rows : min(args.rows, *args.row_count);
}

/// `count` neighbours (2 or 4) of a row of y from column `column` on, a multiple of count.
template <int count>
__device__ __forceinline__ void store_dense(const DenseArgs& args, int64_t row, int column,
                                            const float* sums) {
  const int64_t at = row * args.n + column;
  if (args.n % count == 0) {  // then all of them are there, and aligned
    if (column >= args.n) return;
    float y[count];
#pragma unroll
    for (int i = 0; i < count; ++i) y[i] = sums[i];
    if (args.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < count; i += 2) {
        const uint32_t bias = *reinterpret_cast<const uint32_t*>(args.bias + column + i);
        y[i] = y[i] + __uint_as_float(bias << 16);
        y[i + 1] = y[i + 1] + __uint_as_float(bias & 0xFFFF0000U);
      }
    }
    if (args.residual != nullptr) {
#pragma unroll
      for (int i = 0; i < count; i += 2) {
        const float2 x = *reinterpret_cast<const float2*>(args.residual + at + i);
        y[i] = x.x + y[i];
        y[i + 1] = x.y + y[i + 1];
      }
    }
#pragma unroll
    for (int i = 0; i < count; i += 2) {
      if (args.y_is_bf16) {
        auto* to = static_cast<uint16_t*>(args.y) + at + i;
        *reinterpret_cast<uint32_t*>(to) = as_bits(__floats2bfloat162_rn(y[i], y[i + 1]));
      } else {
        *reinterpret_cast<float2*>(static_cast<float*>(args.y) + at + i) =
            make_float2(y[i], y[i + 1]);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (column + i >= args.n) return;
    float y = sums[i];
    if (args.bias != nullptr) {
      y = y + __uint_as_float(static_cast<uint32_t>(args.bias[column + i]) << 16);
    }
    if (args.residual != nullptr) y = args.residual[at + i] + y;
    if (args.y_is_bf16) {
      static_cast<__nv_bfloat16*>(args.y)[at + i] = __float2bfloat16_rn(y);
    } else {
      static_cast<float*>(args.y)[at + i] = y;
    }
  }
}

}  // namespace quads::kernels::cuda
