// Sixteen FP32 lanes for whichever instruction set the including file is compiled for.
//
// Every row kernel is written once in terms of these lanes and compiled per instruction set
// (isa_portable.cpp, isa_avx2.cpp, isa_avx512.cpp), each into its own namespace QUADS_ISA. All
// operations are IEEE-exact and lane-wise, and reductions follow one tree, so every instruction set
// gives the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "numerics/bf16.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef QUADS_ISA
#error "define QUADS_ISA (the namespace of this instruction set) before including vec16.h"
#endif

namespace quads::kernels::QUADS_ISA {

#if defined(__AVX512F__)

struct F16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};
using Mask16 = __mmask16;

inline F16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a * b + c
inline F16 fnma(F16 a, F16 b, F16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a * b
// max/min return the second operand when either is NaN (the SSE rule, on every path).
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 round_even(F16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline I16 bits(F16 a) { return {_mm512_castps_si512(a.v)}; }
inline F16 from_bits(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline I16 to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // round to nearest even
inline F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I16 splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I16 load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_int(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
inline I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I16 operator&(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline I16 operator|(I16 a, I16 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int n>
I16 shift_left(I16 a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
I16 shift_right(I16 a) {
  return {_mm512_srli_epi32(a.v, n)};
}
inline Mask16 less(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline Mask16 less_equal(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ); }
inline Mask16 equal(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
inline Mask16 first_lanes(int n) { return static_cast<Mask16>((1U << n) - 1U); }
/// m ? a : b, lane by lane.
inline F16 select(Mask16 m, F16 a, F16 b) { return {_mm512_mask_blend_ps(m, b.v, a.v)}; }
inline I16 select(Mask16 m, I16 a, I16 b) { return {_mm512_mask_blend_epi32(m, b.v, a.v)}; }
inline F16 load_bf16(const Bf16* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
inline uint32_t mask_bits(Mask16 m) { return m; }

#elif defined(__AVX2__)

struct F16 {
  __m256 lo, hi;
};
struct I16 {
  __m256i lo, hi;
};
struct Mask16 {
  __m256 lo, hi;
};

inline F16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline F16 operator+(F16 a, F16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F16 operator-(F16 a, F16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F16 operator*(F16 a, F16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F16 operator/(F16 a, F16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F16 sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
inline F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F16 fnma(F16 a, F16 b, F16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F16 round_even(F16 a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
inline I16 bits(F16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline F16 from_bits(I16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline I16 to_int(F16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline F16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I16 splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I16 load_int(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void store_int(int32_t* p, I16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
inline I16 operator+(I16 a, I16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline I16 operator-(I16 a, I16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
inline I16 operator&(I16 a, I16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
inline I16 operator|(I16 a, I16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
template <int n>
I16 shift_left(I16 a) {
  return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
I16 shift_right(I16 a) {
  return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}
inline Mask16 less(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
inline Mask16 less_equal(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
inline Mask16 equal(F16 a, F16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
inline Mask16 first_lanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i count = _mm256_set1_epi32(n);
  return {
      _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
      _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8))))};
}
inline F16 select(Mask16 m, F16 a, F16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}
inline I16 select(Mask16 m, I16 a, I16 b) { return bits(select(m, from_bits(a), from_bits(b))); }
inline F16 load_bf16(const Bf16* p) {
  const auto widen = [](const Bf16* q) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  };
  return {widen(p), widen(p + 8)};
}
inline uint32_t mask_bits(Mask16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) |
         (static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8);
}

#else  // portable

struct F16 {
  float v[16];
};
struct I16 {
  int32_t v[16];
};
struct Mask16 {
  bool v[16];
};

template <class R, class F>
R lanewise(F f) {
  R r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}
inline F16 splat(float x) {
  return lanewise<F16>([&](int) { return x; });
}
inline F16 load(const float* p) {
  return lanewise<F16>([&](int i) { return p[i]; });
}
inline void store(float* p, F16 a) { std::memcpy(p, a.v, sizeof(a.v)); }
inline F16 operator+(F16 a, F16 b) {
  return lanewise<F16>([&](int i) { return a.v[i] + b.v[i]; });
}
inline F16 operator-(F16 a, F16 b) {
  return lanewise<F16>([&](int i) { return a.v[i] - b.v[i]; });
}
inline F16 operator*(F16 a, F16 b) {
  return lanewise<F16>([&](int i) { return a.v[i] * b.v[i]; });
}
inline F16 operator/(F16 a, F16 b) {
  return lanewise<F16>([&](int i) { return a.v[i] / b.v[i]; });
}
inline F16 sqrt(F16 a) {
  return lanewise<F16>([&](int i) { return std::sqrt(a.v[i]); });
}
inline F16 fma(F16 a, F16 b, F16 c) {
  return lanewise<F16>([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline F16 fnma(F16 a, F16 b, F16 c) {
  return lanewise<F16>([&](int i) { return std::fma(-a.v[i], b.v[i], c.v[i]); });
}
inline F16 max(F16 a, F16 b) {
  return lanewise<F16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F16 min(F16 a, F16 b) {
  return lanewise<F16>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F16 round_even(F16 a) {
  return lanewise<F16>([&](int i) { return std::nearbyint(a.v[i]); });
}
inline I16 bits(F16 a) {
  I16 r;
  std::memcpy(r.v, a.v, sizeof(r.v));
  return r;
}
inline F16 from_bits(I16 a) {
  F16 r;
  std::memcpy(r.v, a.v, sizeof(r.v));
  return r;
}
inline I16 to_int(F16 a) {
  return lanewise<I16>([&](int i) { return static_cast<int32_t>(std::nearbyint(a.v[i])); });
}
inline F16 to_float(I16 a) {
  return lanewise<F16>([&](int i) { return static_cast<float>(a.v[i]); });
}
inline I16 splat_int(int32_t x) {
  return lanewise<I16>([&](int) { return x; });
}
inline I16 load_int(const int32_t* p) {
  return lanewise<I16>([&](int i) { return p[i]; });
}
inline void store_int(int32_t* p, I16 a) { std::memcpy(p, a.v, sizeof(a.v)); }
inline int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }
inline I16 operator+(I16 a, I16 b) {
  return lanewise<I16>([&](int i) { return wrap(uint32_t(a.v[i]) + uint32_t(b.v[i])); });
}
inline I16 operator-(I16 a, I16 b) {
  return lanewise<I16>([&](int i) { return wrap(uint32_t(a.v[i]) - uint32_t(b.v[i])); });
}
inline I16 operator&(I16 a, I16 b) {
  return lanewise<I16>([&](int i) { return a.v[i] & b.v[i]; });
}
inline I16 operator|(I16 a, I16 b) {
  return lanewise<I16>([&](int i) { return a.v[i] | b.v[i]; });
}
template <int n>
I16 shift_left(I16 a) {
  return lanewise<I16>([&](int i) { return wrap(uint32_t(a.v[i]) << n); });
}
template <int n>
I16 shift_right(I16 a) {
  return lanewise<I16>([&](int i) { return wrap(uint32_t(a.v[i]) >> n); });
}
inline Mask16 less(F16 a, F16 b) {
  return lanewise<Mask16>([&](int i) { return a.v[i] < b.v[i]; });
}
inline Mask16 less_equal(F16 a, F16 b) {
  return lanewise<Mask16>([&](int i) { return a.v[i] <= b.v[i]; });
}
inline Mask16 equal(F16 a, F16 b) {
  return lanewise<Mask16>([&](int i) { return a.v[i] == b.v[i]; });
}
inline Mask16 first_lanes(int n) {
  return lanewise<Mask16>([&](int i) { return i < n; });
}
inline F16 select(Mask16 m, F16 a, F16 b) {
  return lanewise<F16>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}
inline I16 select(Mask16 m, I16 a, I16 b) {
  return lanewise<I16>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}
inline F16 load_bf16(const Bf16* p) {
  return lanewise<F16>([&](int i) { return quads::to_float(p[i]); });
}
inline uint32_t mask_bits(Mask16 m) {
  uint32_t r = 0;
  for (int i = 0; i < 16; ++i) r |= uint32_t{m.v[i]} << i;
  return r;
}

#endif

#if defined(__AVX2__)

/// Sixteen lanes of 16 bits: BF16 values as they lie in memory.
struct H16 {
  __m256i v;
};

inline H16 load_halves(const Bf16* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline void store_halves(Bf16* p, H16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
inline H16 splat_half(uint16_t x) { return {_mm256_set1_epi16(static_cast<int16_t>(x))}; }
inline H16 operator&(H16 a, H16 b) { return {_mm256_and_si256(a.v, b.v)}; }
/// The larger of two signed numbers.
inline H16 max(H16 a, H16 b) { return {_mm256_max_epi16(a.v, b.v)}; }
/// The largest lane; none is negative.
inline uint16_t largest_lane(H16 a) {
  const __m128i x = _mm_max_epi16(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  // The only horizontal instruction is a minimum.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(-1)));
  return static_cast<uint16_t>(~_mm_cvtsi128_si32(least));
}
/// All bits of the lanes whose byte is not 0.
inline H16 lanes_of_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cmpgt_epi16(_mm256_cvtepu8_epi16(bytes), _mm256_setzero_si256())};
}
/// The upper 16 bits of each lane.
inline H16 upper_halves(I16 a) {
#if defined(__AVX512F__)
  return {_mm512_cvtepi32_epi16(_mm512_srli_epi32(a.v, 16))};
#else
  const __m256i packed =
      _mm256_packus_epi32(_mm256_srli_epi32(a.lo, 16), _mm256_srli_epi32(a.hi, 16));
  return {_mm256_permute4x64_epi64(packed, 0xD8)};
#endif
}

#else

struct H16 {
  uint16_t v[16];
};

inline H16 load_halves(const Bf16* p) {
  return lanewise<H16>([&](int i) { return p[i].bits; });
}
inline void store_halves(Bf16* p, H16 a) {
  for (int i = 0; i < 16; ++i) p[i].bits = a.v[i];
}
inline H16 splat_half(uint16_t x) {
  return lanewise<H16>([&](int) { return x; });
}
inline H16 operator&(H16 a, H16 b) {
  return lanewise<H16>([&](int i) { return static_cast<uint16_t>(a.v[i] & b.v[i]); });
}
inline H16 max(H16 a, H16 b) {
  return lanewise<H16>([&](int i) {
    return static_cast<int16_t>(a.v[i]) > static_cast<int16_t>(b.v[i]) ? a.v[i] : b.v[i];
  });
}
inline uint16_t largest_lane(H16 a) {
  uint16_t m = a.v[0];
  for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
inline H16 lanes_of_bytes(const uint8_t* p) {
  return lanewise<H16>([&](int i) { return p[i] != 0 ? uint16_t{0xFFFF} : uint16_t{0}; });
}
inline H16 upper_halves(I16 a) {
  return lanewise<H16>([&](int i) { return static_cast<uint16_t>(uint32_t(a.v[i]) >> 16); });
}

#endif

inline void store_upper_halves(Bf16* p, I16 a) { store_halves(p, upper_halves(a)); }
inline F16 zero() { return splat(0.0F); }
inline F16 abs(F16 a) { return from_bits(bits(a) & splat_int(0x7FFFFFFF)); }
/// FP32 -> BF16, round to nearest even. Finite input only.
inline void store_bf16(Bf16* p, F16 a) {
  const I16 u = bits(a);
  store_upper_halves(p, u + splat_int(0x7FFF) + (shift_right<16>(u) & splat_int(1)));
}
/// The first n lanes from p, zero elsewhere; reads nothing beyond p[n - 1].
inline F16 load_first(const float* p, int n) {
  if (n >= 16) return load(p);
  alignas(64) float t[16] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * sizeof(float));
  return load(t);
}
inline F16 load_bf16_first(const Bf16* p, int n) {
  if (n >= 16) return load_bf16(p);
  alignas(32) Bf16 t[16] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * sizeof(Bf16));
  return load_bf16(t);
}
inline void store_first(float* p, F16 a, int n) {
  if (n >= 16) return store(p, a);
  alignas(64) float t[16];
  store(t, a);
  std::memcpy(p, t, static_cast<size_t>(n) * sizeof(float));
}
inline void store_bf16_first(Bf16* p, F16 a, int n) {
  if (n >= 16) return store_bf16(p, a);
  alignas(32) Bf16 t[16];
  store_bf16(t, a);
  std::memcpy(p, t, static_cast<size_t>(n) * sizeof(Bf16));
}
/// Sum of the lanes by the one tree: i with i+8, i+4, i+2, i+1 (numerics: reduce_sum_16).
inline float reduce_sum(F16 a) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 x =
      _mm256_add_ps(_mm512_castps512_ps256(a.v),
                    _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
#else
  const __m256 x = _mm256_add_ps(a.lo, a.hi);
#endif
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
#else
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
  }
  return a.v[0];
#endif
}
/// Largest lane; exact, so the order does not matter. No NaN lanes.
inline float reduce_max(F16 a) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 x =
      _mm256_max_ps(_mm512_castps512_ps256(a.v),
                    _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
#else
  const __m256 x = _mm256_max_ps(a.lo, a.hi);
#endif
  const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_shuffle_ps(z, z, 1)));
#else
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
#endif
}

}  // namespace quads::kernels::QUADS_ISA
