// Sums of a tile to y.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/experts/decode.cuh"
#include "kernels/cuda/experts/units.cuh"
#include "kernels/cuda/ptx.cuh"

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

/// A warp's sums of 16 rows of N from `row` on and `groups` x 8 rows of activations, to y. Lane
/// 4 g + t has rows g, g + 8 and columns 2 t, 2 t + 1 of every group. What a unit says is read
/// once, addresses advance by additions: products of few stages feel every instruction here. `cut`:
/// there may be fewer groups; else no branch stands between them, so that they overlap.
template <int groups, bool cut>
__device__ __forceinline__ void store_sums(const float* sums, int row, int lane, const Unit& unit,
                                           const GemmArgs& args) {
  const float scale = unit.scale;
  const int64_t n = args.n;
  // Eight lanes of equal t write 32 bytes, a sector.
  const bool paired = args.output == GemmOutput::kGatesUps;
  const int rows = unit.rows;
  const int left = rows - (lane & 3) * 2;
  float* y = static_cast<float*>(args.y) + (unit.first_row + (lane & 3) * 2) * n +
             (paired ? row / 2 : row) + (lane >> 2);
  float* below = y + (paired ? n / 2 : 8);  // row g + 8
#pragma unroll
  for (int j = 0; j < groups; ++j, y += 8 * n, below += 8 * n) {
    if (cut && j * 8 >= rows) break;
    const float* d = sums + j * 4;
    if (j * 8 < left) {
      y[0] = d[0] * scale;
      below[0] = d[2] * scale;
    }
    if (j * 8 + 1 < left) {
      y[n] = d[1] * scale;
      below[n] = d[3] * scale;
    }
  }
}

/// The same of paired rows, g gates and g + 8 their ups: silu(gate) * up. In kernels of their own,
/// because the code of a store stands in them once for every 8 rows of activations. silu has no
/// branch: with one, groups came one after the other, which took up to a fifth of the product.
template <int groups, bool cut>
__device__ __forceinline__ void store_activated(const float* sums, int row, int lane,
                                                const Unit& unit, const GemmArgs& args) {
  const float scale = unit.scale;
  const int64_t width = args.n / 2;
  const int rows = unit.rows;
  const int left = rows - (lane >> 2);
  auto* y = static_cast<uint16_t*>(args.y) + (unit.first_row + (lane >> 2)) * width + row / 2 +
            (lane & 3) * 2;
#pragma unroll
  for (int j = 0; j < groups; ++j, y += 8 * width) {
    if (cut && j * 8 >= rows) break;
    const float* d = sums + j * 4;
    const float h0 = silu(d[0] * scale) * (d[2] * scale);
    const float h1 = silu(d[1] * scale) * (d[3] * scale);
    const uint32_t pair = transpose_8x8(as_bits(__floats2bfloat162_rn(h0, h1)));
    if (j * 8 < left) *reinterpret_cast<uint32_t*>(y) = pair;
  }
}

}  // namespace quads::kernels::cuda
