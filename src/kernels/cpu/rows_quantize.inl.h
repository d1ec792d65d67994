// Rows of BF16 activations -> operands of a product: NVFP4 with residual compensation, FP8, BF16.
//
// Codes are never formed: the rounded value itself is what the product needs. Rounding to a format
// with few significand bits adds and subtracts a magic number that leaves just those bits, which
// rounds to nearest even like the hardware's adder. All of it is exact or rounded once on the way
// to the grid, so the bits are those of numerics/nvfp4.h, rac.h and fp8.h.
#pragma once

#include "kernels/cpu/rows_elementwise.inl.h"

namespace quads::kernels::QUADS_ISA {

constexpr int64_t kNvfp4BlockSize = 16;  // an NVFP4 block along K
constexpr int64_t kFp8GroupBlocks = 8;   // 128 channels
constexpr uint32_t kBf16Infinity = 0x7F80;

/// The largest magnitude of n values, as BF16 bits: kBf16Infinity or more means a NaN or an Inf.
static inline uint32_t amax_bits(const Bf16* x, int64_t n) {
  int16_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int16_t>(x[i].bits & 0x7FFF);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest);
}

/// The same of one block.
static inline uint32_t block_amax_bits(const Bf16* x) {
#if defined(__AVX2__)
  const __m256i magnitudes = _mm256_and_si256(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)), _mm256_set1_epi16(0x7FFF));
  const __m128i largest =
      _mm_max_epi16(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256(magnitudes, 1));
  // The only horizontal instruction is a minimum.
  const __m128i complement = _mm_xor_si128(largest, _mm_set1_epi16(-1));
  return 0xFFFFU - static_cast<uint32_t>(_mm_extract_epi16(_mm_minpos_epu16(complement), 0));
#else
  return amax_bits(x, kNvfp4BlockSize);
#endif
}

static inline float float_of_bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof(f));
  return f;
}
static inline float float_of_bf16_bits(uint32_t u) { return float_of_bits(u << 16); }

/// numerics' smallest_power_of_two_scale: the smallest s = 2^i with max_value * s >= amax, i >=
/// -100; 1 for amax 0. max_value is given as BF16 bits, in which 2688 and 448 are exact.
static inline float power_of_two_scale(uint32_t amax, uint32_t max_value) {
  if (amax == 0) return 1.0F;
  const int up = (amax & 0x7FU) > (max_value & 0x7FU) ? 1 : 0;
  const int exponent = static_cast<int>(amax >> 7) - static_cast<int>(max_value >> 7) + up;
  return float_of_bits(static_cast<uint32_t>((exponent < -100 ? -100 : exponent) + 127) << 23);
}
constexpr uint32_t kNvfp4MaxBits = 0x4528;  // 2688
constexpr uint32_t kE4m3MaxBits = 0x43E0;   // 448

/// Rounds x to nearest even with `bits_behind` bits behind the leading one, but never finer than
/// smallest_power / 2^bits_behind; `smallest_power` is a power of two. A zero keeps the sign of x.
template <int bits_behind>
static inline F16 round_to_bits(F16 x, float smallest_power) {
  const F16 power = max(from_bits(bits(x) & splat_int(0x7F800000)), splat(smallest_power));
  const F16 magic = power * splat(0x1.8p23F / static_cast<float>(1 << bits_behind));
  const F16 rounded = (x + magic) - magic;
  return from_bits(bits(rounded) | (bits(x) & splat_int(INT32_MIN)));
}
static inline F16 round_e4m3(F16 x) { return round_to_bits<3>(x, 0x1p-6F); }

/// The scales of up to 16 blocks, one a lane.
struct BlockScales {
  alignas(64) float scale[16];       // e4m3 * g, 0 for blocks that quantise to zero
  alignas(64) float reciprocal[16];  // 1 / scale, rounded
  alignas(64) float e4m3[16];
};

/// `floors` [16]: lower bounds of the E4M3 scales.
static inline void block_scales(const float* amax, const float* floors, float g, BlockScales* out) {
  const F16 rounded = round_e4m3(load(amax) / splat(6.0F * g));
  const F16 e4m3 = max(rounded, load(floors));
  store(out->e4m3, e4m3);
  store(out->scale, e4m3 * splat(g));
  store(out->reciprocal, splat(1.0F) / (e4m3 * splat(g)));
}

/// The E2M1 value nearest to x / scale. x times the rounded reciprocal is off by 2^-23 at most,
/// which matters at ties only: x has 8 significand bits and the scale 4, so whatever is not a tie
/// is further than 2^-13 from one. At ties the product is exact or a little above (so for all 8 x 7
/// pairs of scale and boundary); cutting the last 8 bits gives the tie back.
static inline F16 round_e2m1(F16 x, F16 reciprocal) {
  const F16 y = from_bits(bits(x * reciprocal) & splat_int(~0xFF));
  return max(min(round_to_bits<1>(y, 1.0F), splat(6.0F)), splat(-6.0F));
}

static inline void store_zeros(Bf16* p) { std::memset(p, 0, kNvfp4BlockSize * sizeof(Bf16)); }

/// stats[i] += |r[i]| / g in units of 2^-16, rounded to nearest even.
static inline void add_residual_units(F16 r, float inverse_unit, int64_t* stats) {
  alignas(64) int32_t units[16];
  store_int(units, to_int(abs(r) * splat(inverse_unit)));
  for (int i = 0; i < 16; ++i) stats[i] += units[i];
}

static inline int64_t block_position(const QuantizeSpec& spec, int64_t block) {
  return spec.block_position == nullptr ? block : spec.block_position[block];
}

/// floors[i]: the least scale of the residual's block for the scale s1 of its first pass (the rule
/// rac-scale-floor), 0 where s1 is.
static inline void residual_floors(const float* e4m3, float* floors) {
  const F16 s1 = load(e4m3);
  const F16 floor =
      max(from_bits(bits(s1) & splat_int(0x7F800000)) * splat(0.125F), splat(0x1p-9F));
  store(floors, select(less(zero(), s1), floor, zero()));
}

/// q2 of up to 16 blocks from their residuals (BF16, exact), which are masked in place.
static inline void quantize_residuals(Bf16* residual, const QuantizeSpec& spec, int64_t first_block,
                                      int64_t blocks, float g, const float* floors, Bf16* q2) {
  const int64_t limit = 2 * spec.residual_tiles;
  alignas(64) float amax[16] = {};
  for (int64_t b = 0; b < blocks; ++b) {
    if (block_position(spec, first_block + b) >= limit) continue;
    Bf16* r = residual + b * kNvfp4BlockSize;
    if (spec.channel_mask != nullptr) {
      const uint8_t* mask = spec.channel_mask + (first_block + b) * kNvfp4BlockSize;
      for (int i = 0; i < kNvfp4BlockSize; ++i) r[i].bits = mask[i] != 0 ? r[i].bits : uint16_t{0};
    }
    amax[b] = float_of_bf16_bits(block_amax_bits(r));
  }
  BlockScales scales;
  block_scales(amax, floors, g, &scales);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t position = block_position(spec, first_block + b);
    if (position >= limit) continue;
    if (scales.scale[b] == 0.0F) {
      store_zeros(q2 + position * kNvfp4BlockSize);
      continue;
    }
    const F16 q =
        round_e2m1(load_bf16(residual + b * kNvfp4BlockSize), splat(scales.reciprocal[b]));
    store_upper_halves(q2 + position * kNvfp4BlockSize,
                       bits(q * splat(scales.scale[b] * spec.out_scale)));
  }
}

/// `with_residual`: whether the residual is asked for (compensation, or `stats` not null).
template <bool with_residual>
static void quantize_row_nvfp4(const Bf16* x, uint32_t amax_of_row, const QuantizeSpec& spec,
                               Bf16* q1, Bf16* q2, int64_t* stats) {
  const float g = power_of_two_scale(amax_of_row, kNvfp4MaxBits);
  const int64_t num_blocks = spec.k / kNvfp4BlockSize;
  alignas(64) const float no_floors[16] = {};
  for (int64_t first = 0; first < num_blocks; first += 16) {
    const int64_t blocks = lanes_from(num_blocks, first);
    alignas(64) float amax[16] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      amax[b] = float_of_bf16_bits(block_amax_bits(x + (first + b) * kNvfp4BlockSize));
    }
    BlockScales scales;
    block_scales(amax, no_floors, g, &scales);
    alignas(64) Bf16 residual[16 * kNvfp4BlockSize];
    for (int64_t b = 0; b < blocks; ++b) {
      const F16 values = load_bf16(x + (first + b) * kNvfp4BlockSize);
      Bf16* out = q1 + block_position(spec, first + b) * kNvfp4BlockSize;
      F16 q = zero();
      if (scales.scale[b] == 0.0F) {
        store_zeros(out);
      } else {
        q = round_e2m1(values, splat(scales.reciprocal[b]));
        store_upper_halves(out, bits(q * splat(scales.scale[b] * spec.out_scale)));
      }
      if constexpr (with_residual) {
        const F16 r = values - q * splat(scales.scale[b]);
        store_upper_halves(residual + b * kNvfp4BlockSize, bits(r));
        if (stats != nullptr)
          add_residual_units(r, 65536.0F / g, stats + (first + b) * kNvfp4BlockSize);
      }
    }
    if constexpr (with_residual) {
      alignas(64) float floors[16] = {};
      if (spec.scale_floor) residual_floors(scales.e4m3, floors);
      if (spec.residual_tiles > 0) {
        quantize_residuals(residual, spec, first, blocks, g, floors, q2);
      }
    }
  }
}

static void quantize_row_fp8(const Bf16* x, const QuantizeSpec& spec, Bf16* q1) {
  const int64_t num_blocks = spec.k / kNvfp4BlockSize;
  for (int64_t first = 0; first < num_blocks; first += kFp8GroupBlocks) {
    const int64_t end = first + kFp8GroupBlocks < num_blocks ? first + kFp8GroupBlocks : num_blocks;
    const float scale = power_of_two_scale(
        amax_bits(x + first * kNvfp4BlockSize, (end - first) * kNvfp4BlockSize), kE4m3MaxBits);
    for (int64_t b = first; b < end; ++b) {
      const F16 q = round_e4m3(load_bf16(x + b * kNvfp4BlockSize) * splat(1.0F / scale));
      store_upper_halves(q1 + block_position(spec, b) * kNvfp4BlockSize,
                         bits(q * splat(scale * spec.out_scale)));
    }
  }
}

static void copy_row_bf16(const Bf16* x, const QuantizeSpec& spec, Bf16* q1) {
  for (int64_t b = 0; b < spec.k / kNvfp4BlockSize; ++b) {
    Bf16* out = q1 + block_position(spec, b) * kNvfp4BlockSize;
    if (spec.out_scale == 1.0F) {
      std::memcpy(out, x + b * kNvfp4BlockSize, kNvfp4BlockSize * sizeof(Bf16));
    } else {
      store_upper_halves(out, bits(load_bf16(x + b * kNvfp4BlockSize) * splat(spec.out_scale)));
    }
  }
}

// A value that overflows on its way (amax within 1 % of BF16's maximum, or an out_scale too large
// for it) counts as not finite: it left an Inf or NaN in the row's output.
static int64_t quantize_rows(const Bf16* x, int64_t ldx, int64_t rows, const QuantizeSpec& spec,
                             Bf16* q1, int64_t ld1, Bf16* q2, int64_t ld2, int64_t* stats,
                             const uint8_t* counted) {
  for (int64_t r = 0; r < rows; ++r) {
    const Bf16* row = x + r * ldx;
    Bf16* out = q1 + r * ld1;
    const uint32_t amax = amax_bits(row, spec.k);
    if (amax >= kBf16Infinity) return r;
    int64_t* row_stats = counted == nullptr || counted[r] != 0 ? stats : nullptr;
    switch (spec.format) {
      case ActivationFormat::kBf16:
        copy_row_bf16(row, spec, out);
        break;
      case ActivationFormat::kFp8:
        quantize_row_fp8(row, spec, out);
        break;
      case ActivationFormat::kNvfp4:
        if (spec.residual_tiles > 0 || row_stats != nullptr) {
          quantize_row_nvfp4<true>(row, amax, spec, out, q2 + r * ld2, row_stats);
        } else {
          quantize_row_nvfp4<false>(row, amax, spec, out, nullptr, nullptr);
        }
        break;
    }
    const bool may_overflow = float_of_bf16_bits(amax) * spec.out_scale >= 0x1p126F;
    if (may_overflow && amax_bits(out, spec.k) >= kBf16Infinity) return r;
  }
  return -1;
}

}  // namespace quads::kernels::QUADS_ISA
