// One block of 16 values in a thread's registers: to E2M1 x E4M3 x g and back. The same operations
// as kernels/cpu/rows_quantize.inl.h, each exact or rounded once on the way to the grid.
#pragma once

#include <cstdint>

namespace quads::kernels::cuda {

inline constexpr uint32_t kNvfp4MaxBits = 0x4528;  // 2688 as BF16
inline constexpr uint32_t kE4m3MaxBits = 0x43E0;   // 448

/// A block of BF16, 16-byte aligned, as eight pairs.
__device__ __forceinline__ void load_block(const uint16_t* x, uint32_t words[8]) {
  const uint4 low = *reinterpret_cast<const uint4*>(x);
  const uint4 high = *reinterpret_cast<const uint4*>(x + 8);
  words[0] = low.x;
  words[1] = low.y;
  words[2] = low.z;
  words[3] = low.w;
  words[4] = high.x;
  words[5] = high.y;
  words[6] = high.z;
  words[7] = high.w;
}

/// Eight pairs of BF16 to values; returns the bits of the largest magnitude.
__device__ __forceinline__ uint32_t unpack_block(const uint32_t words[8], float values[16]) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    largest = __vmaxu2(largest, words[i] & 0x7FFF7FFFU);
  }
  return max(largest & 0xFFFFU, largest >> 16);
}

/// The largest magnitude of a block.
__device__ __forceinline__ float amax_of(const float x[16]) {
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) amax = fmaxf(amax, fabsf(x[i]));
  return amax;
}

/// numerics' smallest_power_of_two_scale, from the BF16 bits of an amax and of the largest value.
__device__ __forceinline__ float power_of_two_scale(uint32_t amax, uint32_t max_value) {
  if (amax == 0) return 1.0F;
  const int up = (amax & 0x7FU) > (max_value & 0x7FU) ? 1 : 0;
  const int exponent = static_cast<int>(amax >> 7) - static_cast<int>(max_value >> 7) + up;
  return __uint_as_float(static_cast<uint32_t>(max(exponent, -100) + 127) << 23);
}

/// The E4M3 value nearest to x, which must not lie beyond 448 by more than rounding takes back,
/// ties to even; keeps the sign of a zero.
__device__ __forceinline__ float round_e4m3(float x) {
  const float power = fmaxf(__uint_as_float(__float_as_uint(x) & 0x7F800000U), 0x1p-6F);
  const float magic = power * 0x1.8p20F;
  const float rounded = __fadd_rn(__fadd_rn(x, magic), -magic);
  return __uint_as_float(__float_as_uint(rounded) | (__float_as_uint(x) & 0x80000000U));
}

/// The magnitude of the E2M1 value nearest to x / scale; the last 8 bits of the product with the
/// rounded reciprocal are cut, which gives ties back (rows_quantize.inl.h says why that is right
/// for BF16 x).
__device__ __forceinline__ float round_e2m1(float x, float reciprocal) {
  const float y = __uint_as_float(__float_as_uint(__fmul_rn(fabsf(x), reciprocal)) & ~0xFFU);
  const float power = fmaxf(__uint_as_float(__float_as_uint(y) & 0x7F800000U), 1.0F);
  const float magic = power * 0x1.8p22F;
  return fminf(__fadd_rn(__fadd_rn(y, magic), -magic), 6.0F);
}

/// The code of x: exponent and mantissa of its magnitude are the top bits of an FP32's, from .5 up.
__device__ __forceinline__ uint32_t e2m1_code(float x, float reciprocal) {
  const uint32_t top = __float_as_uint(round_e2m1(x, reciprocal)) >> 22;  // 252: .5, 254: 1
  const uint32_t magnitude = top < 252 ? 0U : top == 252 ? 1U : top - 252;
  return magnitude | __float_as_uint(x) >> 31 << 3;
}

/// E4M3 scale of a block, as a value; `g` is a power of two, so the product is exact.
__device__ __forceinline__ float e4m3_scale(float block_amax, float inverse_g) {
  return round_e4m3(__fdiv_rn(block_amax * inverse_g, 6.0F));
}

/// The code of an E4M3 value >= 0.
__device__ __forceinline__ uint32_t e4m3_code(float value) {
  if (value < 0x1p-6F) return __float2uint_rn(value * 512.0F);
  return (__float_as_uint(value) >> 20) - (120U << 3);
}

/// The least scale of the residual's block for the scale s1 of the first pass; 0 where s1 is.
__device__ __forceinline__ float residual_scale_floor(float s1) {
  if (s1 == 0.0F) return 0.0F;
  return fmaxf(__uint_as_float(__float_as_uint(s1) & 0x7F800000U) * 0.125F, 0x1p-9F);
}

/// q = x rounded to the grid of `scale` (e4m3 * g), +0 everywhere when that is 0.
__device__ __forceinline__ void quantize_values(const float x[16], float scale, float q[16]) {
  const float reciprocal = scale == 0.0F ? 0.0F : __fdiv_rn(1.0F, scale);
  const uint32_t sign = scale == 0.0F ? 0U : 0x80000000U;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float magnitude = round_e2m1(x[i], reciprocal) * scale;
    q[i] = __uint_as_float(__float_as_uint(magnitude) | (__float_as_uint(x[i]) & sign));
  }
}

}  // namespace quads::kernels::cuda
