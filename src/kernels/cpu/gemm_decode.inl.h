// One packed weight tile, 16 n x 32 k, to FP32: for each of the 16 pairs of k, the 16 even elements
// (one per n), then the 16 odd ones. NVFP4 comes out times 2^-112, as gemm_kernels.h says.
#pragma once

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/vec16.h"

namespace quads::kernels::QUADS_ISA {
namespace {  // internal: a copy compiled for this instruction set must never serve another

constexpr int64_t kTileK = 32;
constexpr int64_t kTileN = 16;
constexpr int64_t kTileFloats = kTileK * kTileN;
constexpr int64_t kBf16TileBytes = 1024;
constexpr int64_t kFp8TileBytes = 512;
constexpr int64_t kNvfp4TileBytes = 256;
constexpr int64_t kNvfp4TileScales = 32;
constexpr int32_t kUpperHalf = -65536;  // 0xFFFF0000

inline float power_of_two(int exponent) {
  const int32_t b = (exponent + 127) << 23;
  float x;
  std::memcpy(&x, &b, sizeof(x));
  return x;
}

inline void decode_bf16_tile(const uint8_t* tile, float* out) {
  for (int pair = 0; pair < 16; ++pair) {
    const I16 both = load_int(reinterpret_cast<const int32_t*>(tile + pair * 64));
    store(out + pair * 32, from_bits(shift_left<16>(both)));
    store(out + pair * 32 + 16, from_bits(both & splat_int(kUpperHalf)));
  }
}

#if defined(__AVX512F__)

/// 16 E4M3 scales without sign, times 2^-112. As FP16 the code times 128 is value * 2^-8, and that
/// conversion ignores the flush-denormals mode.
inline F16 nvfp4_scales(const uint8_t* scales) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7);
  return F16{_mm512_cvtph_ps(halves)} * splat(0x1p-104F);
}

inline void decode_nvfp4_tile(const uint8_t* tile, const uint8_t* scales, float* out) {
  // BF16 of the sixteen codes, twice: the permutation reads five bits of the index.
  const __m512i codes = _mm512_setr_epi32(
      0x3F000000, 0x3FC03F80, 0x40404000, 0x40C04080, static_cast<int>(0xBF008000),
      static_cast<int>(0xBFC0BF80), static_cast<int>(0xC040C000), static_cast<int>(0xC0C0C080),
      0x3F000000, 0x3FC03F80, 0x40404000, 0x40C04080, static_cast<int>(0xBF008000),
      static_cast<int>(0xBFC0BF80), static_cast<int>(0xC040C000), static_cast<int>(0xC0C0C080));
  const I16 high = splat_int(kUpperHalf);
  for (int half = 0; half < 2; ++half) {
    const F16 scale = nvfp4_scales(scales + 16 * half);
    for (int group = 0; group < 2; ++group) {
      __m512i words = _mm512_loadu_si512(tile + (2 * half + group) * 64);
      float* to = out + (2 * half + group) * 128;
      for (int i = 0; i < 4; ++i) {
        const I16 both = {_mm512_permutexvar_epi16(words, codes)};
        store(to + 32 * i, from_bits(shift_left<16>(both)) * scale);
        store(to + 32 * i + 16, from_bits(both & high) * scale);
        words = _mm512_srli_epi16(words, 4);
      }
    }
  }
}

inline void decode_fp8_tile(const uint8_t* tile, int exponent, float* out) {
  const __m256i magnitude = _mm256_set1_epi16(0x3F80);
  const __m256i sign = _mm256_set1_epi16(static_cast<int16_t>(0x8000));
  // Two factors: 2^(exponent + 8) alone could exceed FP32.
  const F16 unbias = splat(0x1p8F);
  const F16 scale = splat(power_of_two(exponent));
  for (int pair = 0; pair < 16; ++pair) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + pair * 32));
    const __m256i even = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(both, 7), magnitude),
                                         _mm256_and_si256(_mm256_slli_epi16(both, 8), sign));
    const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 1), magnitude),
                                        _mm256_and_si256(both, sign));
    store(out + pair * 32, F16{_mm512_cvtph_ps(even)} * unbias * scale);
    store(out + pair * 32 + 16, F16{_mm512_cvtph_ps(odd)} * unbias * scale);
  }
}

#elif defined(__AVX2__)

/// 16 E4M3 scales without sign. As FP16 the code times 128 is value * 2^-8, and that conversion
/// ignores the flush-denormals mode.
inline F16 nvfp4_scales(const uint8_t* scales) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7);
  return F16{_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
             _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))} *
         splat(0x1p8F);
}

/// The pair of k whose codes are in bits 8..11 of the words, for eight n.
inline void decode_nvfp4_pair(__m256i words, __m256 scale, float* out) {
  // Upper bytes of the FP16 of the sixteen codes; the lower ones are zero, as is the first entry.
  const __m256i codes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0x00, 0x38, 0x3C, 0x3E, 0x40, 0x42, 0x44, 0x46, static_cast<char>(0x80),
                    static_cast<char>(0xB8), static_cast<char>(0xBC), static_cast<char>(0xBE),
                    static_cast<char>(0xC0), static_cast<char>(0xC2), static_cast<char>(0xC4),
                    static_cast<char>(0xC6)));
  const __m256i halves =
      _mm256_shuffle_epi8(codes, _mm256_and_si256(words, _mm256_set1_epi16(0x0F00)));
  // FP16 to BF16 of the value times 2^-112: the sign stays, exponent and mantissa move down.
  const __m256i both = _mm256_and_si256(_mm256_srai_epi16(halves, 3),
                                        _mm256_set1_epi16(static_cast<int16_t>(0x8FFF)));
  const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(kUpperHalf)));
  _mm256_store_ps(out, _mm256_mul_ps(even, scale));
  _mm256_store_ps(out + 16, _mm256_mul_ps(odd, scale));
}

inline void decode_nvfp4_tile(const uint8_t* tile, const uint8_t* scales, float* out) {
  for (int half = 0; half < 2; ++half) {
    const F16 scale = nvfp4_scales(scales + 16 * half);
    for (int group = 2 * half; group < 2 * half + 2; ++group) {
      for (int side = 0; side < 2; ++side) {  // eight n each
        const __m256 s = side == 0 ? scale.lo : scale.hi;
        const __m256i words =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + group * 64 + side * 32));
        float* to = out + group * 128 + side * 8;
        decode_nvfp4_pair(_mm256_slli_epi16(words, 8), s, to);
        decode_nvfp4_pair(_mm256_slli_epi16(words, 4), s, to + 32);
        decode_nvfp4_pair(words, s, to + 64);
        decode_nvfp4_pair(_mm256_srli_epi16(words, 4), s, to + 96);
      }
    }
  }
}

inline void decode_fp8_tile(const uint8_t* tile, int exponent, float* out) {
  const __m256i magnitude = _mm256_set1_epi16(0x3F80);
  const __m256i sign = _mm256_set1_epi16(static_cast<int16_t>(0x8000));
  // Two factors: 2^(exponent + 8) alone could exceed FP32.
  const F16 unbias = splat(0x1p8F);
  const F16 scale = splat(power_of_two(exponent));
  const auto widen = [&](__m256i halves) {
    return F16{_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
               _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))} *
           unbias * scale;
  };
  for (int pair = 0; pair < 16; ++pair) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + pair * 32));
    store(out + pair * 32,
          widen(_mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(both, 7), magnitude),
                                _mm256_and_si256(_mm256_slli_epi16(both, 8), sign))));
    store(out + pair * 32 + 16,
          widen(_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 1), magnitude),
                                _mm256_and_si256(both, sign))));
  }
}

#else  // portable

/// E4M3 to FP32; no NaN codes reach a packed matrix.
inline float e4m3_value(uint8_t code) {
  const int magnitude = code & 0x7F;
  float value = static_cast<float>(magnitude) * 0x1p-9F;
  if (magnitude >= 8) {
    const int32_t b = (magnitude << 20) + (120 << 23);  // 120 = 127 - 7, the biases
    std::memcpy(&value, &b, sizeof(value));
  }
  return (code & 0x80) != 0 ? -value : value;
}

inline void decode_nvfp4_tile(const uint8_t* tile, const uint8_t* scales, float* out) {
  constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                 -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  for (int pair = 0; pair < 16; ++pair) {
    for (int n = 0; n < 16; ++n) {
      const float scale = e4m3_value(scales[pair / 8 * 16 + n]) * 0x1p-112F;
      for (int parity = 0; parity < 2; ++parity) {
        uint16_t word;
        std::memcpy(&word, tile + pair / 4 * 64 + n * 4 + parity * 2, sizeof(word));
        out[pair * 32 + parity * 16 + n] = kValues[(word >> (pair % 4 * 4)) & 15] * scale;
      }
    }
  }
}

inline void decode_fp8_tile(const uint8_t* tile, int exponent, float* out) {
  const float scale = power_of_two(exponent);
  for (int i = 0; i < 512; ++i) {
    out[i / 32 * 32 + i % 2 * 16 + i % 32 / 2] = e4m3_value(tile[i]) * scale;
  }
}

#endif

/// Tile `index` (in [n_tiles][k_tiles] order) of `weight` to out [16 pairs][2][16 n], 32-byte
/// aligned.
inline void decode_tile(const PackedMatrix& weight, int64_t index, float* out) {
  switch (weight.format) {
    case WeightFormat::kBf16:
      return decode_bf16_tile(weight.tiles + index * kBf16TileBytes, out);
    case WeightFormat::kFp8:
      return decode_fp8_tile(weight.tiles + index * kFp8TileBytes,
                             static_cast<int8_t>(weight.scales[index]), out);
    case WeightFormat::kNvfp4:
      return decode_nvfp4_tile(weight.tiles + index * kNvfp4TileBytes,
                               weight.scales + index * kNvfp4TileScales, out);
  }
}

}  // namespace
}  // namespace quads::kernels::QUADS_ISA
