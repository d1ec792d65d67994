// NVFP4 fragments to BF16 or FP16 in registers: e2m1 * e4m3 * 2^-8, exact.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/experts/fragment_codes_fp16.h"

namespace quads::kernels::cuda {

__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t bits) {
  return *reinterpret_cast<__nv_bfloat162*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__nv_bfloat162 pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}
__device__ __forceinline__ __half2 as_fp16_pair(uint32_t bits) {
  return *reinterpret_cast<__half2*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__half2 pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}

/// Two blocks of 16 along K: codes (two words) and their scale word to the A operands of two
/// m16k16 fragments.
__device__ __forceinline__ void decode_blocks(uint32_t first, uint32_t second, uint32_t scales,
                                              uint32_t a0[4], uint32_t a1[4]) {
  uint32_t pairs[8];
  decode_pairs(first, second, pairs);
  const __nv_bfloat162 even = as_pair(decode_scale_even(scales));
  const __nv_bfloat162 odd = as_pair(decode_scale_odd(scales));
  // Registers 0 and 2 hold row g, 1 and 3 row g + 8. A scale for both halves is an operand
  // modifier.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a0[i] = as_bits(
        __hmul2_rn(as_pair(pairs[i]), i & 1 ? __high2bfloat162(even) : __low2bfloat162(even)));
    a1[i] = as_bits(
        __hmul2_rn(as_pair(pairs[4 + i]), i & 1 ? __high2bfloat162(odd) : __low2bfloat162(odd)));
  }
}

/// The same to FP16, from words of fragment_codes_fp16.h.
__device__ __forceinline__ void decode_blocks_fp16(uint32_t first, uint32_t second, uint32_t scales,
                                                   uint32_t a0[4], uint32_t a1[4]) {
  decode_pairs_fp16(first, a0);
  decode_pairs_fp16(second, a1);
  const __half2 even = as_fp16_pair(decode_scale_even_fp16(scales));
  const __half2 odd = as_fp16_pair(decode_scale_odd_fp16(scales));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a0[i] =
        as_bits(__hmul2_rn(as_fp16_pair(a0[i]), i & 1 ? __high2half2(even) : __low2half2(even)));
    a1[i] = as_bits(__hmul2_rn(as_fp16_pair(a1[i]), i & 1 ? __high2half2(odd) : __low2half2(odd)));
  }
}

}  // namespace quads::kernels::cuda
