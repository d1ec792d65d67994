// Sums over a row's vocabulary: which tokens take part, and the order.
#pragma once

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/sampling/sample_launch.h"

namespace quads::kernels::cuda {

constexpr float kInfinity = __builtin_inff();

__device__ __forceinline__ float greater(float a, float b) { return a > b ? a : b; }

/// The row's largest logit, from its chunks' ones; -Inf if there are only NaNs. By whole warps.
__device__ __forceinline__ float largest_logit(const SampleArgs& args, int64_t row, int lane) {
  const int chunks = args.chunks;
  float largest = -kInfinity;
  for (int i = lane; i < chunks; i += 32) {
    largest = greater(args.maxima[row * chunks + i], largest);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) largest = greater(__shfl_xor_sync(~0U, largest, d), largest);
  return largest;
}

/// exp(t - m) where the top-k leaves the token; m is the largest t. A NaN stays.
__device__ __forceinline__ float exponential(float z, float inv_temperature, float m,
                                             float least_logit) {
  const float e = exp_f32(z * inv_temperature - m);
  return z < least_logit ? 0.0F : e;
}
/// The same where top-p leaves it too.
__device__ __forceinline__ float kept_exponential(float z, int token, float inv_temperature,
                                                  float m, const Kept& kept) {
  const float e = exponential(z, inv_temperature, m, kept.least_logit);
  const uint32_t bits = __float_as_uint(e);
  const bool keeps = bits > kept.least_bits || (bits == kept.least_bits && token <= kept.last_tie);
  return keeps ? e : 0.0F;
}

/// The sum of a row's pieces in order, by a warp; every lane has it. `below`, unless null, gets the
/// sum of the pieces before each, and at [pieces] the whole.
__device__ __forceinline__ double add_pieces(const float* sums, int pieces, int lane,
                                             double* below) {
  double total = 0.0;
  for (int first = 0; first < pieces; first += 32) {
    const float mine = first + lane < pieces ? sums[first + lane] : 0.0F;
    double before = 0.0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (i == lane) before = total;
      total += __shfl_sync(~0U, mine, i);  // + 0 beyond the end
    }
    if (below != nullptr && first + lane < pieces) below[first + lane] = before;
  }
  if (below != nullptr && lane == 0) below[pieces] = total;
  return total;
}

/// m + log(sum of exp(t - m)) of a row whose pieces are summed, by a warp.
__device__ __forceinline__ float log_sum_exp(const SampleArgs& args, int64_t row, int lane) {
  const int pieces = args.pieces;
  const double sum = add_pieces(args.sums + row * pieces, pieces, lane, nullptr);
  return largest_logit(args, row, lane) * args.inv_temperature + log_f32(static_cast<float>(sum));
}

}  // namespace quads::kernels::cuda
