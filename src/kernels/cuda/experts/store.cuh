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

/// A warp's sums of 16 rows of N from `row` on and 8 rows of activations from `column` on, to y.
/// Lane 4 g + t has rows g, g + 8 and columns 2 t, 2 t + 1.
__device__ __forceinline__ void store_sums(const float* d, int row, int column, int lane,
                                           const Unit& unit, const GemmArgs& args) {
  if (args.output == GemmOutput::kBf16) {
    // Transposed, a lane has two neighbours of one row of y.
    const uint32_t low =
        transpose_8x8(as_bits(__floats2bfloat162_rn(d[0] * unit.scale, d[1] * unit.scale)));
    const uint32_t high =
        transpose_8x8(as_bits(__floats2bfloat162_rn(d[2] * unit.scale, d[3] * unit.scale)));
    const int at = column + (lane >> 2);
    if (at >= unit.rows) return;
    auto* y = static_cast<uint16_t*>(args.y) + static_cast<int64_t>(unit.first_row + at) * args.n +
              row + (lane & 3) * 2;
    reinterpret_cast<uint32_t*>(y)[0] = low;
    reinterpret_cast<uint32_t*>(y)[4] = high;
    return;
  }
  // Eight lanes of equal t write 32 bytes, a sector.
  const bool paired = args.output == GemmOutput::kGatesUps;
  const int step = paired ? args.n / 2 : 8;  // to row g + 8
  auto* y = static_cast<float*>(args.y) + (paired ? row / 2 : row) + (lane >> 2);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = column + (lane & 3) * 2 + (i & 1);
    if (at >= unit.rows) continue;
    y[static_cast<int64_t>(unit.first_row + at) * args.n + (i >> 1) * step] = d[i] * unit.scale;
  }
}

/// The same of paired rows, g gates and g + 8 their ups: silu(gate) * up. In kernels of their own,
/// because the code of a store stands in them once for every 8 rows of activations.
__device__ __forceinline__ void store_activated(const float* d, int row, int column, int lane,
                                                const Unit& unit, const GemmArgs& args) {
  const float h0 = silu(d[0] * unit.scale) * (d[2] * unit.scale);
  const float h1 = silu(d[1] * unit.scale) * (d[3] * unit.scale);
  const uint32_t pair = transpose_8x8(as_bits(__floats2bfloat162_rn(h0, h1)));
  const int at = column + (lane >> 2);
  if (at >= unit.rows) return;
  auto* y = static_cast<uint16_t*>(args.y) +
            static_cast<int64_t>(unit.first_row + at) * (args.n / 2) + row / 2 + (lane & 3) * 2;
  *reinterpret_cast<uint32_t*>(y) = pair;
}

}  // namespace quads::kernels::cuda
