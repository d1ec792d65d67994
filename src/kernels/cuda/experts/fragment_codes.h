// How 16 E2M1 codes and their E4M3 scales lie in a fragment of weights, so that a thread decodes
// them to BF16 with few instructions. Plain C++, shared by the packer and by the kernels.
//
// A thread of an MMA holds pairs of weights (two neighbours along K, one 32-bit register of two
// BF16). Eight pairs, 16 codes, are two words. A masked pair has sign, exponent and mantissa where
// BF16 has them: the bits are those of code * 2^-126, subnormal where e2m1 is. Six pairs lie in the
// words directly, shifted or rotated; the bits of the last two fill the gaps.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define QUADS_HOST_DEVICE __host__ __device__
#else
#define QUADS_HOST_DEVICE
#endif

namespace quads::kernels::cuda {

inline constexpr uint32_t kPairMask = 0x81C081C0U;  // sign and e1 e0 m of both halves
inline constexpr uint32_t kGapMask = 0x60306030U;   // where pairs 6 and 7 lie in the words

/// decode_scale_even and _odd give s * 2^118, so a decoded weight is e2m1 * e4m3 * 2^-8; kernels
/// multiply their sums by 2^8. All exact in BF16.
inline constexpr float kDecodedWeightFactor = 256.0F;

QUADS_HOST_DEVICE constexpr uint32_t rotate_left(uint32_t x, int distance) {
  return (x << distance) | (x >> ((32 - distance) & 31));
}
QUADS_HOST_DEVICE inline uint32_t rotate_right(uint32_t x, int distance) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(x, x, distance);
#else
  return rotate_left(x, 32 - distance);
#endif
}

/// Two E2M1 codes, `low` with the smaller k, as a masked pair.
QUADS_HOST_DEVICE constexpr uint32_t masked_pair(uint32_t low, uint32_t high) {
  return (low & 7U) << 6 | (low >> 3) << 15 | (high & 7U) << 22 | (high >> 3) << 31;
}

struct CodeWords {
  uint32_t first, second;
};

/// The words of eight masked pairs.
QUADS_HOST_DEVICE constexpr CodeWords encode_pairs(const uint32_t pairs[8]) {
  const uint32_t gaps = pairs[6] >> 2 | rotate_left(pairs[7], 8);
  return {pairs[0] | rotate_left(pairs[1], 4) | pairs[2] >> 6 | (gaps & kGapMask),
          pairs[3] | rotate_left(pairs[4], 4) | pairs[5] >> 6 | (rotate_left(gaps, 30) & kGapMask)};
}

/// Its inverse: 16 instructions for 16 codes.
QUADS_HOST_DEVICE inline void decode_pairs(uint32_t first, uint32_t second, uint32_t pairs[8]) {
  pairs[0] = first & kPairMask;
  pairs[1] = rotate_right(first, 4) & kPairMask;
  pairs[2] = first << 6 & kPairMask;
  pairs[3] = second & kPairMask;
  pairs[4] = rotate_right(second, 4) & kPairMask;
  pairs[5] = second << 6 & kPairMask;
  const uint32_t turned = rotate_right(second, 30);
#ifdef __CUDA_ARCH__
  uint32_t gaps;  // (first & mask) | (turned & ~mask) as one instruction
  asm("lop3.b32 %0, %1, %2, %3, 0xE2;" : "=r"(gaps) : "r"(first), "n"(kGapMask), "r"(turned));
#else
  const uint32_t gaps = (first & kGapMask) | (turned & ~kGapMask);
#endif
  pairs[6] = gaps << 2 & kPairMask;
  pairs[7] = rotate_right(gaps, 8) & kPairMask;
}

/// An E4M3 scale (code 0..7E) as 5 exponent and 3 mantissa bits without subnormals, u, such that
/// the BF16 bits u << 4 | 7000 are s * 2^118. 0 becomes 2^-21: its codes have to be zero.
constexpr uint32_t encode_scale(uint32_t e4m3) {
  if (e4m3 >= 8) return e4m3 + 112;
  constexpr uint32_t kSubnormals[8] = {0, 96, 104, 108, 112, 114, 116, 118};
  return kSubnormals[e4m3];
}

/// The inverse of encode_scale; FF for a byte that it never gives.
constexpr uint32_t restore_scale(uint32_t u) {
  for (uint32_t e4m3 = 0; e4m3 <= 0x7E; ++e4m3) {
    if (encode_scale(e4m3) == u) return e4m3;
  }
  return 0xFF;
}

/// The scales (encode_scale) of two neighbouring blocks along K and of two rows, 8 apart: the even
/// block's at bits 4..11 and 20..27, the odd block's at the same places after a rotation by 8.
QUADS_HOST_DEVICE constexpr uint32_t scale_word(uint32_t even_row0, uint32_t even_row8,
                                                uint32_t odd_row0, uint32_t odd_row8) {
  return even_row0 << 4 | even_row8 << 20 | rotate_left(odd_row0 << 4 | odd_row8 << 20, 8);
}

/// The two rows' scales of one block as a pair of BF16, low half row 0.
QUADS_HOST_DEVICE inline uint32_t decode_scale_even(uint32_t word) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;"  // (word & mask) | bits
      : "=r"(pair)
      : "r"(word), "n"(0x0FF00FF0), "r"(0x70007000));
  return pair;
#else
  return (word & 0x0FF00FF0U) | 0x70007000U;
#endif
}
QUADS_HOST_DEVICE inline uint32_t decode_scale_odd(uint32_t word) {
  return decode_scale_even(rotate_right(word, 8));
}

}  // namespace quads::kernels::cuda
