// The same codes and scales (fragment_codes.h) for kernels that decode to FP16.
//
// A masked pair has sign, exponent and mantissa where FP16 has them: the bits are those of
// code * 2^-14, subnormal where e2m1 is. Four pairs make a word. Two lie in it directly, shifted by
// 0 and 8; no third fits, so the bits of the other two lie in the gaps, and come from the word and
// from the word shifted by 3. Shifts to the left, as multiplications leave the busier pipe alone.
#pragma once

#include "kernels/cuda/experts/fragment_codes.h"

namespace quads::kernels::cuda {

inline constexpr uint32_t kPairMaskFp16 = 0x8E008E00U;  // sign and e1 e0 m of both halves
inline constexpr uint32_t kMixMaskFp16 = 0x41414141U;   // what of pairs 2 and 3 is not shifted by 3

/// Two E2M1 codes, `low` with the smaller k, as a masked pair.
QUADS_HOST_DEVICE constexpr uint32_t masked_pair_fp16(uint32_t low, uint32_t high) {
  return (low & 7U) << 9 | (low >> 3) << 15 | (high & 7U) << 25 | (high >> 3) << 31;
}

/// The word of four masked pairs.
QUADS_HOST_DEVICE constexpr uint32_t encode_pairs_fp16(const uint32_t pairs[4]) {
  const uint32_t mixed = pairs[2] >> 1 | pairs[3] >> 9;
  return pairs[0] | pairs[1] >> 8 | (mixed & kMixMaskFp16) | (mixed & ~kMixMaskFp16) << 3;
}

/// Its inverse: 9 instructions for 8 codes.
QUADS_HOST_DEVICE inline void decode_pairs_fp16(uint32_t word, uint32_t pairs[4]) {
  pairs[0] = word & kPairMaskFp16;
  pairs[1] = word << 8 & kPairMaskFp16;
  const uint32_t shifted = word >> 3;
#ifdef __CUDA_ARCH__
  uint32_t mixed;  // (word & mask) | (shifted & ~mask) as one instruction
  asm("lop3.b32 %0, %1, %2, %3, 0xE2;" : "=r"(mixed) : "r"(word), "n"(kMixMaskFp16), "r"(shifted));
#else
  const uint32_t mixed = (word & kMixMaskFp16) | (shifted & ~kMixMaskFp16);
#endif
  pairs[2] = mixed << 1 & kPairMaskFp16;
  pairs[3] = mixed << 9 & kPairMaskFp16;
}

/// A scale_word whose scales are FP16 without more ado: s * 2^6, so that a decoded weight is
/// e2m1 * e4m3 * 2^-8 as in BF16. A multiple of 2^-18 with 6 significand bits, at most 10.5: exact
/// in FP16, subnormal below 2^-14.
QUADS_HOST_DEVICE constexpr uint32_t scale_word_fp16(uint32_t scale_word) {
  return rotate_left(scale_word, 3);
}

/// The two rows' scales of one block as a pair of FP16, low half row 0.
QUADS_HOST_DEVICE inline uint32_t decode_scale_even_fp16(uint32_t word) {
  return word & 0x7F807F80U;
}
QUADS_HOST_DEVICE inline uint32_t decode_scale_odd_fp16(uint32_t word) {
  return decode_scale_even_fp16(rotate_right(word, 8));
}

}  // namespace quads::kernels::cuda
