// Quantises and packs BF16 weights into the tiles of gemm_kernels.h.
//
// The unit is half a tile, 16 n x 16 k: transposed so that a lane is one n and a vector one pair of
// k, the even element in the lower 16 bits. Block amax, scales and codes are then lane by lane.
#pragma once

#include "kernels/cpu/gemm_common.h"
#include "kernels/cpu/gemm_decode.inl.h"

namespace quads::kernels::QUADS_ISA {
namespace {  // internal: a copy compiled for this instruction set must never serve another

constexpr int kHalfPairs = 8;

// 32 lanes of 16 bits in an I16.
#if defined(__AVX512F__)
inline I16 max_16bit(I16 a, I16 b) { return {_mm512_max_epi16(a.v, b.v)}; }
/// -1 where a > b (signed), 0 elsewhere.
inline I16 greater_16bit(I16 a, I16 b) {
  return {_mm512_movm_epi16(_mm512_cmpgt_epi16_mask(a.v, b.v))};
}
inline I16 subtract_16bit(I16 a, I16 b) { return {_mm512_sub_epi16(a.v, b.v)}; }
/// The lowest byte of every 32-bit lane; the lanes are below 128.
inline void store_bytes(uint8_t* p, I16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
#elif defined(__AVX2__)
inline I16 max_16bit(I16 a, I16 b) {
  return {_mm256_max_epi16(a.lo, b.lo), _mm256_max_epi16(a.hi, b.hi)};
}
inline I16 greater_16bit(I16 a, I16 b) {
  return {_mm256_cmpgt_epi16(a.lo, b.lo), _mm256_cmpgt_epi16(a.hi, b.hi)};
}
inline I16 subtract_16bit(I16 a, I16 b) {
  return {_mm256_sub_epi16(a.lo, b.lo), _mm256_sub_epi16(a.hi, b.hi)};
}
inline void store_bytes(uint8_t* p, I16 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.lo, a.hi), 0xD8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
#else
template <class F>
I16 lanewise_16bit(I16 a, I16 b, F f) {
  int16_t x[32];
  int16_t y[32];
  std::memcpy(x, a.v, sizeof(x));
  std::memcpy(y, b.v, sizeof(y));
  for (int i = 0; i < 32; ++i) x[i] = static_cast<int16_t>(f(x[i], y[i]));
  std::memcpy(a.v, x, sizeof(x));
  return a;
}
inline I16 max_16bit(I16 a, I16 b) {
  return lanewise_16bit(a, b, [](int x, int y) { return x > y ? x : y; });
}
inline I16 greater_16bit(I16 a, I16 b) {
  return lanewise_16bit(a, b, [](int x, int y) { return x > y ? -1 : 0; });
}
inline I16 subtract_16bit(I16 a, I16 b) {
  return lanewise_16bit(a, b, [](int x, int y) { return x - y; });
}
inline void store_bytes(uint8_t* p, I16 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(a.v[i]);
}
#endif

#if defined(__AVX2__)
inline void transpose_8x8(const Bf16* x, int64_t ldx, __m256i* out) {
  __m256i r[8];
  for (int i = 0; i < 8; ++i)
    r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i * ldx));
  __m256i t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
    out[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
  }
}
/// out[pair] lane n = the pair of BF16 at x[n * ldx + 2 * pair], for 16 rows.
inline void transpose_half_tile(const Bf16* x, int64_t ldx, I16* out) {
  __m256i lo[8];
  __m256i hi[8];
  transpose_8x8(x, ldx, lo);
  transpose_8x8(x + 8 * ldx, ldx, hi);
  for (int i = 0; i < kHalfPairs; ++i) {
#if defined(__AVX512F__)
    out[i] = {_mm512_inserti64x4(_mm512_castsi256_si512(lo[i]), hi[i], 1)};
#else
    out[i] = {lo[i], hi[i]};
#endif
  }
}
#else
inline void transpose_half_tile(const Bf16* x, int64_t ldx, I16* out) {
  for (int n = 0; n < 16; ++n) {
    for (int i = 0; i < kHalfPairs; ++i) std::memcpy(&out[i].v[n], x + n * ldx + 2 * i, 4);
  }
}
#endif

inline F16 even_floats(I16 pair) { return from_bits(shift_left<16>(pair)); }
inline F16 odd_floats(I16 pair) { return from_bits(pair & splat_int(kUpperHalf)); }

/// E4M3 codes of x >= 0, to nearest, ties to even, at most 448; one a lane.
inline I16 e4m3_codes(F16 x) {
  x = min(x, splat(448.0F));
  const I16 u = bits(x);
  const I16 rounded = shift_right<20>(u + splat_int(0x7FFFF) + (shift_right<20>(u) & splat_int(1)));
  // Below 2^-6 a code counts multiples of 2^-9; 120 = 127 - 7, the biases.
  return select(less(x, splat(0x1p-6F)), to_int(x * splat(512.0F)), rounded - splat_int(120 << 3));
}
inline F16 e4m3_values(I16 codes) {
  const F16 normal = from_bits(shift_left<20>(codes) + splat_int(120 << 23));
  const F16 subnormal = to_float(codes) * splat(0x1p-9F);
  return select(less(subnormal, splat(0x1p-6F)), subnormal, normal);
}

inline bool is_power_of_two(float g) {
  int32_t b;
  std::memcpy(&b, &g, sizeof(b));
  return (b & 0x7FFFFF) == 0;
}

/// Counts how many of the seven boundaries |x| is beyond, for the 32 BF16 of a vector; a tie falls
/// to the even code. `boundaries` are BF16 bits, less one where a tie goes up.
inline I16 count_boundaries(I16 magnitude, const I16* boundaries) {
  I16 count = splat_int(0);
  for (int b = 0; b < 7; ++b)
    count = subtract_16bit(count, greater_16bit(magnitude, boundaries[b]));
  return count;
}

/// The boundaries times sf * g. At most 7 significand bits, so exact in BF16, and the order of BF16
/// magnitudes is that of their bits. Out of reach where sf is 0.
inline void scaled_boundaries(F16 scale, I16* out) {
  constexpr float kBoundaries[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const Mask16 none = equal(scale, zero());
  for (int b = 0; b < 7; ++b) {
    const I16 upper = bits(scale * splat(kBoundaries[b]));
    const I16 both = upper | shift_right<16>(upper);
    // Odd boundaries lie between an odd and a higher even code: a tie goes up.
    out[b] = select(none, splat_int(0x7FFF7FFF), b % 2 == 1 ? both - splat_int(0x10001) : both);
  }
}

/// E2M1 magnitudes of x >= 0, already scaled.
inline I16 e2m1_codes(F16 x) {
  const I16 one = splat_int(1);
  const I16 none = splat_int(0);
  return select(less(splat(0.25F), x), one, none) + select(less_equal(splat(0.75F), x), one, none) +
         select(less(splat(1.25F), x), one, none) + select(less_equal(splat(1.75F), x), one, none) +
         select(less(splat(2.5F), x), one, none) + select(less_equal(splat(3.5F), x), one, none) +
         select(less(splat(5.0F), x), one, none);
}

/// The scales of 16 blocks, one a lane: E4M3 codes to `codes`, and the values times g.
inline F16 nvfp4_block_scales(const I16* pairs, float g, uint8_t* codes) {
  const I16 magnitude_bits = splat_int(0x7FFF7FFF);
  I16 amax_bits = pairs[0] & magnitude_bits;
  for (int i = 1; i < kHalfPairs; ++i) {
    amax_bits = max_16bit(amax_bits, pairs[i] & magnitude_bits);
  }
  const F16 amax = max(even_floats(amax_bits), odd_floats(amax_bits));
  const I16 scale_codes = e4m3_codes(amax / splat(6.0F * g));
  store_bytes(codes, scale_codes);
  return e4m3_values(scale_codes) * splat(g);
}

/// The codes of 16 blocks under their scales, which carry g; 128 B.
template <bool exact_scale>
void pack_nvfp4_codes(const I16* pairs, F16 scale, uint8_t* codes) {
  const I16 magnitude_bits = splat_int(0x7FFF7FFF);
  // A block of zeros has code 0 throughout, signs included.
  const I16 kept = select(equal(scale, zero()), splat_int(0), splat_int(-1));
  I16 boundaries[7];
  if (exact_scale) scaled_boundaries(scale, boundaries);
  for (int group = 0; group < 2; ++group) {
    I16 words = splat_int(0);
    for (int i = 3; i >= 0; --i) {
      const I16 pair = pairs[group * 4 + i];
      const I16 magnitude = pair & magnitude_bits;
      const I16 code = exact_scale ? count_boundaries(magnitude, boundaries)
                                   : e2m1_codes(even_floats(magnitude) / scale) |
                                         shift_left<16>(e2m1_codes(odd_floats(magnitude) / scale));
      const I16 sign = shift_right<12>(pair) & splat_int(0x80008);
      words = shift_left<4>(words) | code | sign;
    }
    store_int(reinterpret_cast<int32_t*>(codes + group * 64), words & kept);
  }
}

/// E4M3 codes of 16 pairs over 2^exponent, which brings them to at most 448; 32 B, [16 n][2].
inline void pack_fp8_pair(I16 pair, int exponent, uint8_t* out) {
  const I16 magnitude = pair & splat_int(0x7FFF7FFF);
  // Where all codes are normal, rounding away four bits of the BF16 and moving the bias is enough.
  const int smallest_normal = (exponent + 121) * 0x00800080;
  const I16 below = greater_16bit(splat_int(smallest_normal), magnitude);
  I16 codes;
  if (mask_bits(equal(to_float(below), zero())) == 0xFFFF) {
    const I16 odd_bit = shift_right<4>(magnitude) & splat_int(0x00010001);
    const I16 rounded = magnitude + splat_int(0x00070007) + odd_bit;
    codes = (shift_right<4>(rounded) & splat_int(0x0FFF0FFF)) -
            splat_int((exponent + 120) * 0x00080008);
  } else {
    const F16 inverse = splat(power_of_two(-exponent));
    codes = e4m3_codes(even_floats(magnitude) * inverse) |
            shift_left<16>(e4m3_codes(odd_floats(magnitude) * inverse));
  }
  codes = codes | (shift_right<8>(pair) & splat_int(0x00800080));
  store_upper_halves(reinterpret_cast<Bf16*>(out), shift_left<16>(codes | shift_right<8>(codes)));
}

/// The largest magnitude of count BF16 values, as its 15 bits.
inline int max_magnitude_bits(const Bf16* x, int64_t count) {
  int16_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<int16_t>(x[i].bits & 0x7FFF);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Exponent of the smallest power of two s with 448 s >= amax, at least -100; 0 for amax 0
/// (numerics: fp8_scale_pow2).
inline int fp8_scale_exponent(int amax_bits) {
  constexpr int kMantissa448 = 0x60;  // 448 = 1.75 * 2^8
  if (amax_bits == 0) return 0;
  const int exponent = (amax_bits >> 7) - 127 - 8 + ((amax_bits & 0x7F) > kMantissa448 ? 1 : 0);
  return exponent < -100 ? -100 : exponent;
}

/// Exponents of the 128 x 128 blocks of rows n_begin..n_end, to the scales of their tiles.
inline void find_fp8_exponents(const PackArgs& args) {
  constexpr int64_t kBlock = 128;
  const PackedMatrix& out = *args.out;
  for (int64_t n0 = args.n_begin; n0 < args.n_end; n0 += kBlock) {
    const int64_t n1 = n0 + kBlock < args.n_end ? n0 + kBlock : args.n_end;
    for (int64_t k0 = 0; k0 < out.k; k0 += kBlock) {
      const int64_t k1 = k0 + kBlock < out.k ? k0 + kBlock : out.k;
      int amax_bits = 0;
      for (int64_t n = n0; n < n1; ++n) {
        const int b = max_magnitude_bits(args.w + n * args.ldw + k0, k1 - k0);
        amax_bits = b > amax_bits ? b : amax_bits;
      }
      const auto exponent = static_cast<int8_t>(fp8_scale_exponent(amax_bits));
      for (int64_t n = n0; n < n1; n += kTileN) {
        for (int64_t k = k0; k < k1; k += kTileK) {
          out.scales[n / kTileN * out.k_tiles() + k / kTileK] = static_cast<uint8_t>(exponent);
        }
      }
    }
  }
}

/// Copies k values, a multiple of 16.
inline void copy_row(const Bf16* from, int64_t k, Bf16* to) {
  for (int64_t i = 0; i < k; i += 16) std::memcpy(to + i, from + i, 32);
}

/// Half a tile in the making: where it goes and what it holds.
struct HalfTile {
  I16 pairs[kHalfPairs];
  F16 scale;  // NVFP4 only
  int64_t index;
  int64_t half;
};

inline void store_half_tile(const HalfTile& from, bool exact_scale, const PackedMatrix& out) {
  switch (out.format) {
    case WeightFormat::kBf16:
      for (int i = 0; i < kHalfPairs; ++i) {
        uint8_t* to = out.tiles + from.index * kBf16TileBytes + (from.half * kHalfPairs + i) * 64;
        store_int(reinterpret_cast<int32_t*>(to), from.pairs[i]);
      }
      return;
    case WeightFormat::kFp8: {
      const int exponent = static_cast<int8_t>(out.scales[from.index]);
      for (int i = 0; i < kHalfPairs; ++i) {
        pack_fp8_pair(from.pairs[i], exponent,
                      out.tiles + from.index * kFp8TileBytes + (from.half * kHalfPairs + i) * 32);
      }
      return;
    }
    case WeightFormat::kNvfp4: {
      uint8_t* to = out.tiles + from.index * kNvfp4TileBytes + from.half * 128;
      if (exact_scale) {
        pack_nvfp4_codes<true>(from.pairs, from.scale, to);
      } else {
        pack_nvfp4_codes<false>(from.pairs, from.scale, to);
      }
      return;
    }
  }
}

inline void pack(const PackArgs& args) {
  check_pack_args(args);
  const PackedMatrix& out = *args.out;
  if (out.format == WeightFormat::kFp8) find_fp8_exponents(args);
  const bool exact_scale = is_power_of_two(args.global_scale);
  // A few blocks at a time: copied first, since sixteen rows that are a power of two apart would
  // push each other out of L1, and their scales found together, so that the divisions overlap.
  constexpr int64_t kBatch = 16;
  constexpr int64_t kStride = kBatch * 16 + 16;
  alignas(64) Bf16 rows[16 * kStride];
  HalfTile batch[kBatch];
  for (int64_t n0 = args.n_begin; n0 < args.n_end; n0 += kTileN) {
    const int64_t valid = n0 + kTileN < args.n_end ? kTileN : args.n_end - n0;
    if (valid < kTileN) std::memset(rows, 0, sizeof(rows));
    for (int64_t k0 = 0; k0 < out.k; k0 += kBatch * 16) {
      const int64_t k = k0 + kBatch * 16 < out.k ? kBatch * 16 : out.k - k0;
      for (int64_t n = 0; n < valid; ++n) {
        copy_row(args.w + (n0 + n) * args.ldw + k0, k, rows + n * kStride);
      }
      for (int64_t b = 0; b < k / 16; ++b) {
        HalfTile& to = batch[b];
        transpose_half_tile(rows + b * 16, kStride, to.pairs);
        const int64_t block = k0 / 16 + b;
        const int64_t position =
            args.block_position != nullptr ? args.block_position[block] : block;
        to.index = n0 / kTileN * out.k_tiles() + position / 2;
        to.half = position % 2;
        if (out.format == WeightFormat::kNvfp4) {
          to.scale = nvfp4_block_scales(to.pairs, args.global_scale,
                                        out.scales + to.index * kNvfp4TileScales + to.half * 16);
        }
      }
      for (int64_t b = 0; b < k / 16; ++b) store_half_tile(batch[b], exact_scale, out);
    }
  }
}

inline AmaxResult amax(const Bf16* x, int64_t count) {
  constexpr int kInfinity = 0x7F80;
  const int all = max_magnitude_bits(x, count);
  AmaxResult result = {0.0F, -1};
  int finite = all;
  if (all >= kInfinity) {
    finite = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int magnitude = x[i].bits & 0x7FFF;
      if (magnitude < kInfinity) {
        finite = magnitude > finite ? magnitude : finite;
      } else if (result.non_finite < 0) {
        result.non_finite = i;
      }
    }
  }
  const int32_t b = finite << 16;
  std::memcpy(&result.amax, &b, sizeof(b));
  return result;
}

}  // namespace
}  // namespace quads::kernels::QUADS_ISA
