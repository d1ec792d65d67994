// The rule by which parts of a row's softmax are joined, and its pieces.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/experts/decode.cuh"

namespace quads::kernels::cuda {

/// 2^x within 2^-22; denormal results are 0; 2^0 = 1 and 2^-inf = 0 exactly.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float lowest_float() { return __uint_as_float(0xFF800000U); }

/// What a row's softmax has seen so far: the largest exponent and the sum; its o goes beside.
struct RowStats {
  float m, l;
};

/// Joins a later split's stats to `total`; o = o * keep + o_split * add.
struct SplitMerge {
  float keep, add;
  bool empty;  // the split has no position of the row: all stays

  __device__ __forceinline__ SplitMerge(RowStats* total, RowStats split) {
    empty = split.m == lowest_float() && split.l == 0.0F;
    const float m = fmaxf(total->m, split.m);
    keep = exp2_fast(total->m - m);
    add = exp2_fast(split.m - m);
    if (empty) return;
    total->l = __fadd_rn(__fmul_rn(total->l, keep), __fmul_rn(split.l, add));
    total->m = m;
  }
  __device__ __forceinline__ float operator()(float o, float o_split) const {
    return empty ? o : __fadd_rn(__fmul_rn(o, keep), __fmul_rn(o_split, add));
  }
};

/// bf16(o (1 / l)) of two neighbours.
__device__ __forceinline__ uint32_t scaled_pair(float o0, float o1, float inverse_l) {
  return as_bits(__floats2bfloat162_rn(o0 * inverse_l, o1 * inverse_l));
}

}  // namespace quads::kernels::cuda
