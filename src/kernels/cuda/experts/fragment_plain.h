// FP8 and BF16 weights in the order of fragments: one byte or two a weight, K in its natural order.
//
// An expert's W [n, k] is [n / 64 tiles][ceil(k / 128) stages][4 slices of 16 rows][slice], as
// NVFP4 weights are (fragment_weights.h). A slice of BF16 is [8 of k16][32 threads][4 registers of
// two]. A slice of FP8 is [4 of k32][32 threads][2 of k16][2 words], then twice the scale of rows g
// and the one of rows g + 8: a block of 128 x 128 covers eights of rows, paired or not
// (paired_rows.h), and whole stages. The first word of a k16 holds registers 0 and 1 in the high
// and the low bytes of its halves, the second registers 2 and 3.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/experts/fragment_codes.h"
#include "kernels/cuda/experts/weight_format.h"
#include "numerics/bf16.h"
#include "numerics/fp8.h"

namespace quads::kernels::cuda {

inline constexpr int kFp8SliceBytes = slice_bytes(WeightFormat::kFp8);
inline constexpr int kBf16SliceBytes = slice_bytes(WeightFormat::kBf16);

/// A word of four E4M3 codes to two pairs of BF16, e4m3 * 2^-120 (subnormal where e4m3 is): the
/// pair in the high bytes and the one in the low bytes.
QUADS_HOST_DEVICE inline void decode_e4m3_pairs(uint32_t word, uint32_t* high, uint32_t* low) {
  *high = (word >> 4 & 0x07F007F0U) | (word & 0x80008000U);
  *low = (word << 4 & 0x07F007F0U) | (word << 8 & 0x80008000U);
}

/// A scale lies there as a pair of BF16, s * 2^112, so that a decoded weight is e4m3 * s * 2^-8, as
/// for NVFP4.
inline constexpr float kFp8ScaleFactor = 0x1p112F;
inline constexpr float kMaxFp8FragmentScale = 0x1p15F;

/// Packs W [rows, k] of one expert into `out` (fragment_bytes of the format); `paired`: rows are
/// gates and ups, in the order of paired_rows.h. Error unless rows is a multiple of 64 and the
/// sizes fit; for FP8 also unless its blocks are 128 x 128, scales powers of two of 2^-100 .. 2^15
/// (numerics' quantiser gives no other), and no code is NaN.
void pack_fp8_fragments(const Fp8Matrix& w, std::span<uint8_t> out, bool paired = false);
void pack_bf16_fragments(std::span<const Bf16> w, int64_t rows, int64_t k, std::span<uint8_t> out,
                         bool paired = false);

/// The inverses.
Fp8Matrix unpack_fp8_fragments(std::span<const uint8_t> packed, int64_t rows, int64_t k,
                               bool paired = false);
std::vector<Bf16> unpack_bf16_fragments(std::span<const uint8_t> packed, int64_t rows, int64_t k,
                                        bool paired = false);

}  // namespace quads::kernels::cuda
