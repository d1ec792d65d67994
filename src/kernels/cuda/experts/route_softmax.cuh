// The softmax of a row of the router by a warp, in the CPU's order, for routing and its backward.
#pragma once

#include "kernels/cuda/device_math.cuh"

namespace quads::kernels::cuda {

/// The largest value of a warp's lanes; passes over NaN.
__device__ __forceinline__ float largest_of_warp(float largest) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const float other = __shfl_xor_sync(~0U, largest, d);
    largest = other > largest ? other : largest;
  }
  return largest;
}

/// z: logits of experts lane, lane + 32, ...; to exp(z - largest), 0 where there is no expert.
/// Returns their sum in every lane: sixteen chains, by expert % 16 in order, which the lower half
/// warp has.
template <int per_lane>
__device__ __forceinline__ float exponentials(int experts, float largest, float (&z)[per_lane]) {
  const int lane = threadIdx.x & 31;
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < per_lane; ++j) {
    z[j] = j * 32 + lane < experts ? exp_f32(z[j] - largest) : 0.0F;
    const float upper = __shfl_xor_sync(~0U, z[j], 16);
    sum = sum + z[j];
    sum = sum + upper;
  }
  return __shfl_sync(~0U, reduce_sum_16(sum), 0);
}

}  // namespace quads::kernels::cuda
