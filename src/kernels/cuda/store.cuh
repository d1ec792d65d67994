// Sums of a tile to y.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/units.cuh"

namespace quads::kernels::cuda {

/// A warp's accumulators, 8 rows of activations in units of their `scales`, to values: powers of
/// two, so exact.
__device__ __forceinline__ void scale_sums(const float* scales, int lane, float* d) {
  const float2 two = *reinterpret_cast<const float2*>(scales + (lane & 3) * 2);
  d[0] *= two.x;
  d[1] *= two.y;
  d[2] *= two.x;
  d[3] *= two.y;
}

/// x0 and x1: the values of lane 4 g + t in rows 2 t and 2 t + 1 of y, column g. Transposed, a lane
/// has two neighbours, 2 t and 2 t + 1, of row g: BF16 to `to` of that row.
__device__ __forceinline__ void store_transposed(float x0, float x1, uint16_t* to, bool there) {
  const uint32_t pair = transpose_8x8(as_bits(__floats2bfloat162_rn(x0, x1)));
  if (there) *reinterpret_cast<uint32_t*>(to) = pair;
}

/// d: a warp's accumulators of 16 rows of N from `row` on and 8 rows of activations from `column`
/// on. Lane 4 g + t has rows g, g + 8 and columns 2 t, 2 t + 1.
__device__ __forceinline__ void store_sums(const float* d, int row, int column, int lane,
                                           const Unit& unit, const GemmArgs& args) {
  const float y[4] = {d[0] * unit.scale, d[1] * unit.scale, d[2] * unit.scale, d[3] * unit.scale};
  const bool gated = args.output == GemmOutput::kSilu;
  if (gated || args.output == GemmOutput::kBf16) {
    const int at = column + (lane >> 2);
    const int64_t first = static_cast<int64_t>(unit.first_row + at) * (gated ? args.n / 2 : args.n);
    uint16_t* to =
        static_cast<uint16_t*>(args.y) + first + (gated ? row / 2 : row) + (lane & 3) * 2;
    if (gated) {
      store_transposed(silu(y[0]) * y[2], silu(y[1]) * y[3], to, at < unit.rows);
    } else {
      store_transposed(y[0], y[1], to, at < unit.rows);
      store_transposed(y[2], y[3], to + 8, at < unit.rows);
    }
    return;
  }
  // Eight lanes of equal t write 32 bytes, a sector.
  const bool paired = args.output == GemmOutput::kGatesUps;
  const int from = (paired ? row / 2 : row) + (lane >> 2);
  const int step = paired ? args.n / 2 : 8;  // to row g + 8
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = column + (lane & 3) * 2 + (i & 1);
    if (at >= unit.rows) continue;
    static_cast<float*>(
        args.y)[static_cast<int64_t>(unit.first_row + at) * args.n + from + (i >> 1) * step] = y[i];
  }
}

}  // namespace quads::kernels::cuda
