// Packed weight tiles, 16 n x 32 k, to FP32, some side by side: sink(pair, tile, even, odd) is
// called for each of the 16 pairs of k in rising order, with the 16 even elements (one per n) and
// the 16 odd ones. NVFP4 comes out times 2^-112, as gemm_kernels.h says.
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

inline F16 fp8_scale(const uint8_t* exponent) {
  return splat(power_of_two(static_cast<int8_t>(*exponent)));
}

/// Where tiles lie.
struct TilePlaces {
  const uint8_t* codes;
  const uint8_t* scales;  // NVFP4: 16 of each half; FP8: one exponent
};

template <int tiles, class Sink>
inline void decode_bf16_tiles(const TilePlaces (&at)[tiles], Sink&& sink) {
  for (int pair = 0; pair < 16; ++pair) {
#pragma GCC unroll 4
    for (int t = 0; t < tiles; ++t) {
      const I16 both = load_int(reinterpret_cast<const int32_t*>(at[t].codes + pair * 64));
      sink(pair, t, from_bits(shift_left<16>(both)), from_bits(both & splat_int(kUpperHalf)));
    }
  }
}

#if defined(__AVX512F__)

inline F16 from_fp16(__m256i halves) { return {_mm512_cvtph_ps(halves)}; }

/// 16 E4M3 scales without sign, times 2^-112. As FP16 the code times 128 is value * 2^-8, and that
/// conversion ignores the flush-denormals mode.
inline F16 nvfp4_scales(const uint8_t* scales) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7);
  return from_fp16(halves) * splat(0x1p-104F);
}

template <int tiles, class Sink>
inline void decode_nvfp4_tiles(const TilePlaces (&at)[tiles], Sink&& sink) {
  // BF16 of the sixteen codes, twice: the permutation reads five bits of the index.
  const __m512i codes = _mm512_setr_epi32(
      0x3F000000, 0x3FC03F80, 0x40404000, 0x40C04080, static_cast<int>(0xBF008000),
      static_cast<int>(0xBFC0BF80), static_cast<int>(0xC040C000), static_cast<int>(0xC0C0C080),
      0x3F000000, 0x3FC03F80, 0x40404000, 0x40C04080, static_cast<int>(0xBF008000),
      static_cast<int>(0xBFC0BF80), static_cast<int>(0xC040C000), static_cast<int>(0xC0C0C080));
  const I16 high = splat_int(kUpperHalf);
  for (int group = 0; group < 4; ++group) {
    __m512i words[tiles];
    F16 scale[tiles];
#pragma GCC unroll 4
    for (int t = 0; t < tiles; ++t) {
      words[t] = _mm512_loadu_si512(at[t].codes + group * 64);
      scale[t] = nvfp4_scales(at[t].scales + group / 2 * 16);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
      for (int t = 0; t < tiles; ++t) {
        const I16 both = {_mm512_permutexvar_epi16(words[t], codes)};
        sink(group * 4 + i, t, from_bits(shift_left<16>(both)) * scale[t],
             from_bits(both & high) * scale[t]);
        words[t] = _mm512_srli_epi16(words[t], 4);
      }
    }
  }
}

#elif defined(__AVX2__)

inline F16 from_fp16(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

/// 16 E4M3 scales without sign. As FP16 the code times 128 is value * 2^-8, and that conversion
/// ignores the flush-denormals mode.
inline F16 nvfp4_scales(const uint8_t* scales) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 7);
  return from_fp16(halves) * splat(0x1p8F);
}

/// The pair of k whose codes are in bits 8..11 of the words, for eight n, as BF16 times 2^-112.
inline __m256i decode_nvfp4_pair(__m256i words) {
  // Upper bytes of the FP16 of the sixteen codes; the lower ones are zero, as is the first entry.
  const __m256i codes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0x00, 0x38, 0x3C, 0x3E, 0x40, 0x42, 0x44, 0x46, static_cast<char>(0x80),
                    static_cast<char>(0xB8), static_cast<char>(0xBC), static_cast<char>(0xBE),
                    static_cast<char>(0xC0), static_cast<char>(0xC2), static_cast<char>(0xC4),
                    static_cast<char>(0xC6)));
  const __m256i halves =
      _mm256_shuffle_epi8(codes, _mm256_and_si256(words, _mm256_set1_epi16(0x0F00)));
  // FP16 to BF16 of the value times 2^-112: the sign stays, exponent and mantissa move down.
  return _mm256_and_si256(_mm256_srai_epi16(halves, 3),
                          _mm256_set1_epi16(static_cast<int16_t>(0x8FFF)));
}

template <int tiles, class Sink>
inline void decode_nvfp4_tiles(const TilePlaces (&at)[tiles], Sink&& sink) {
  const I16 high = splat_int(kUpperHalf);
  for (int group = 0; group < 4; ++group) {
    I16 words[tiles];
    F16 scale[tiles];
#pragma GCC unroll 4
    for (int t = 0; t < tiles; ++t) {
      words[t] = load_int(reinterpret_cast<const int32_t*>(at[t].codes + group * 64));
      scale[t] = nvfp4_scales(at[t].scales + group / 2 * 16);
    }
    const auto pair = [&](int i, auto&& shifted) {
#pragma GCC unroll 4
      for (int t = 0; t < tiles; ++t) {
        const I16 both = {decode_nvfp4_pair(shifted(words[t].lo)),
                          decode_nvfp4_pair(shifted(words[t].hi))};
        sink(group * 4 + i, t, from_bits(shift_left<16>(both)) * scale[t],
             from_bits(both & high) * scale[t]);
      }
    };
    pair(0, [](__m256i w) { return _mm256_slli_epi16(w, 8); });
    pair(1, [](__m256i w) { return _mm256_slli_epi16(w, 4); });
    pair(2, [](__m256i w) { return w; });
    pair(3, [](__m256i w) { return _mm256_srli_epi16(w, 4); });
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

template <int tiles, class Sink>
inline void decode_nvfp4_tiles(const TilePlaces (&at)[tiles], Sink&& sink) {
  constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                 -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  for (int pair = 0; pair < 16; ++pair) {
    for (int t = 0; t < tiles; ++t) {
      const auto element = [&](int parity) {
        return lanewise<F16>([&](int n) {
          const float scale = e4m3_value(at[t].scales[pair / 8 * 16 + n]) * 0x1p-112F;
          uint16_t word;
          std::memcpy(&word, at[t].codes + pair / 4 * 64 + n * 4 + parity * 2, sizeof(word));
          return kValues[(word >> (pair % 4 * 4)) & 15] * scale;
        });
      };
      sink(pair, t, element(0), element(1));
    }
  }
}

template <int tiles, class Sink>
inline void decode_fp8_tiles(const TilePlaces (&at)[tiles], Sink&& sink) {
  for (int pair = 0; pair < 16; ++pair) {
    for (int t = 0; t < tiles; ++t) {
      const float scale = power_of_two(static_cast<int8_t>(*at[t].scales));
      const auto element = [&](int parity) {
        return lanewise<F16>(
            [&](int n) { return e4m3_value(at[t].codes[pair * 32 + n * 2 + parity]) * scale; });
      };
      sink(pair, t, element(0), element(1));
    }
  }
}

#endif

#if defined(__AVX2__)

template <int tiles, class Sink>
inline void decode_fp8_tiles(const TilePlaces (&at)[tiles], Sink&& sink) {
  const __m256i magnitude = _mm256_set1_epi16(0x3F80);
  const __m256i sign = _mm256_set1_epi16(static_cast<int16_t>(0x8000));
  // Two factors: 2^(exponent + 8) alone could exceed FP32.
  const F16 unbias = splat(0x1p8F);
  for (int pair = 0; pair < 16; ++pair) {
#pragma GCC unroll 4
    for (int t = 0; t < tiles; ++t) {
      const F16 scale = fp8_scale(at[t].scales);
      const __m256i both =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at[t].codes + pair * 32));
      const __m256i even = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(both, 7), magnitude),
                                           _mm256_and_si256(_mm256_slli_epi16(both, 8), sign));
      const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 1), magnitude),
                                          _mm256_and_si256(both, sign));
      sink(pair, t, from_fp16(even) * unbias * scale, from_fp16(odd) * unbias * scale);
    }
  }
}

#endif

/// The tiles at `index`, in [n_tiles][k_tiles] order, of `weight`.
template <int tiles, class Sink>
inline void decode_tiles(const PackedMatrix& weight, const int64_t (&index)[tiles], Sink&& sink) {
  TilePlaces at[tiles];
  const auto places = [&](int64_t code_bytes, int64_t scale_bytes) {
    for (int t = 0; t < tiles; ++t) {
      at[t] = {weight.tiles + index[t] * code_bytes, weight.scales + index[t] * scale_bytes};
    }
  };
  switch (weight.format) {
    case WeightFormat::kBf16:
      places(kBf16TileBytes, 0);
      return decode_bf16_tiles(at, sink);
    case WeightFormat::kFp8:
      places(kFp8TileBytes, 1);
      return decode_fp8_tiles(at, sink);
    case WeightFormat::kNvfp4:
      places(kNvfp4TileBytes, kNvfp4TileScales);
      return decode_nvfp4_tiles(at, sink);
  }
}

/// One tile to out [16 pairs][2][16 n].
inline void decode_tile(const PackedMatrix& weight, int64_t index, float* out) {
  decode_tiles<1>(weight, {index}, [&](int pair, int, F16 even, F16 odd) {
    store(out + pair * 32, even);
    store(out + pair * 32 + 16, odd);
  });
}

}  // namespace
}  // namespace quads::kernels::QUADS_ISA
