// Elementary functions of rows on a device: numerics/math.h and the CPU's row kernels operation by
// operation, so that the bits are theirs. Files that use them are compiled with --ftz=true, as the
// CPU's kernels run with denormals flushed.
#pragma once

#include <cstdint>

namespace quads::kernels::cuda {

/// numerics' exp_f32 of what is no larger than its greatest argument, 88.37, or NaN.
__device__ __forceinline__ float exp_in_range(float x) {
  constexpr float kMin = -87.3365F;
  const float shifted = __fmaf_rn(x, 0x1.715476p+0F, 0x1.8p23F);
  const float n = shifted - 0x1.8p23F;
  float r = __fmaf_rn(n, -0x1.62e4p-1F, x);
  r = __fmaf_rn(n, -0x1.7f7d1cp-20F, r);
  float p = 1.9875691500e-4F;
  p = __fmaf_rn(p, r, 1.3981999507e-3F);
  p = __fmaf_rn(p, r, 8.3334519073e-3F);
  p = __fmaf_rn(p, r, 4.1665795894e-2F);
  p = __fmaf_rn(p, r, 1.6666665459e-1F);
  p = __fmaf_rn(p, r, 5.0000001201e-1F);
  p = __fmaf_rn(p, r * r, r);
  p = p + 1.0F;
  const float power = __uint_as_float((__float_as_uint(shifted) + 127U) << 23);
  return x < kMin ? 0.0F : p * power;
}

/// numerics' exp_f32.
__device__ __forceinline__ float exp_f32(float x) {
  constexpr float kMax = 88.37F;
  return exp_in_range(kMax < x ? kMax : x);  // keeps a NaN
}

/// numerics' log_f32.
__device__ __forceinline__ float log_f32(float x) {
  constexpr uint32_t kSqrtHalf = 0x3F3504F3U;
  const uint32_t offset = __float_as_uint(x) - kSqrtHalf;
  const auto e = static_cast<float>(static_cast<int32_t>(offset) >> 23);
  const float f = __uint_as_float((offset & 0x7FFFFFU) + kSqrtHalf) - 1.0F;
  const float square = f * f;
  float p = 7.0376836292e-2F;
  p = __fmaf_rn(p, f, -1.1514610310e-1F);
  p = __fmaf_rn(p, f, 1.1676998740e-1F);
  p = __fmaf_rn(p, f, -1.2420140846e-1F);
  p = __fmaf_rn(p, f, 1.4249322787e-1F);
  p = __fmaf_rn(p, f, -1.6668057665e-1F);
  p = __fmaf_rn(p, f, 2.0000714765e-1F);
  p = __fmaf_rn(p, f, -2.4999993993e-1F);
  p = __fmaf_rn(p, f, 3.3333331174e-1F);
  p = p * f;
  p = __fmaf_rn(e, -2.12194440e-4F, p * square);
  p = __fmaf_rn(-0.5F, square, p);
  p = f + p;
  p = __fmaf_rn(e, 0x1.63p-1F, p);
  const float infinity = __uint_as_float(0x7F800000U);
  if (x < 0x1p-126F) return -infinity;
  return x < infinity ? p : x;
}

/// a / d for d in [1, 2]: the operations of __fdiv_rn without its branch to what such divisors do
/// not need, so that independent quotients overlap.
__device__ __forceinline__ float divide_by_1_to_2(float a, float d) {
  const bool small = fabsf(a) < 0x1p-60F;  // its remainders would be flushed
  const float dividend = small ? a * 0x1p64F : a;
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  r = __fmaf_rn(__fmaf_rn(-d, r, 1.0F), r, r);
  float q = dividend * r;
  q = __fmaf_rn(__fmaf_rn(-d, q, dividend), r, q);
  q = __fmaf_rn(__fmaf_rn(-d, q, dividend), r, q);
  if (small) q *= 0x1p-64F;
  return fabsf(a) == __uint_as_float(0x7F800000U) ? a : copysignf(q, a);  // -0 would be 0
}

/// exp(-|x|). By the bit of the sign, as -fabsf flushes and negates in two more instructions.
__device__ __forceinline__ float exp_of_minus_magnitude(float x) {
  return exp_in_range(__uint_as_float(__float_as_uint(x) | 0x80000000U));
}

/// sigmoid(x) and x * sigmoid(x), without overflow.
__device__ __forceinline__ float sigmoid(float x) {
  const float t = exp_of_minus_magnitude(x);
  return divide_by_1_to_2(x < 0.0F ? t : 1.0F, 1.0F + t);
}
__device__ __forceinline__ float silu(float x) {
  const float t = exp_of_minus_magnitude(x);
  return divide_by_1_to_2(x * (x < 0.0F ? t : 1.0F), 1.0F + t);
}

/// numerics' to_bf16: bits.
__device__ __forceinline__ uint32_t round_bf16(float x) {
  const uint32_t u = __float_as_uint(x);
  if (x != x) return u >> 16 | 0x40U;
  return (u + 0x7FFFU + (u >> 16 & 1U)) >> 16;
}

/// The sum of 16 partial sums, those of the half warp, by numerics' tree; every lane has it.
__device__ __forceinline__ float reduce_sum_16(float x) {
#pragma unroll
  for (int d = 8; d > 0; d /= 2) x += __shfl_xor_sync(~0U, x, d);
  return x;
}

}  // namespace quads::kernels::cuda
