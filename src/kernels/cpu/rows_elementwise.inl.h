// Row kernels that touch each element once: conversions, sums and the weighted sum of experts.
#pragma once

#include "kernels/cpu/vec16.h"

namespace quads::kernels::QUADS_ISA {

/// How many of the 16 lanes that start at i are inside n.
static inline int lanes_from(int64_t n, int64_t i) {
  return n - i < 16 ? static_cast<int>(n - i) : 16;
}

/// The first n lanes as BF16, rounded as numerics' to_bf16 does: a NaN stays a NaN, where the plain
/// store_bf16 could carry its significand over into the exponent and make it a zero.
static inline void store_rounded(Bf16* p, F16 a, int n) {
  const I16 u = bits(a);
  const I16 rounded = u + splat_int(0x7FFF) + (shift_right<16>(u) & splat_int(1));
  const I16 result = select(equal(a, a), rounded, u | splat_int(0x00400000));
  if (n >= 16) return store_upper_halves(p, result);
  alignas(32) Bf16 t[16];
  store_upper_halves(t, result);
  std::memcpy(p, t, static_cast<size_t>(n) * sizeof(Bf16));
}

static void combine(const float* x, const float* const* parts, const float* weights, int64_t top_k,
                    int64_t d, float* y) {
  for (int64_t i = 0; i < d; i += 16) {
    const int lanes = lanes_from(d, i);
    F16 sum = load_first(x + i, lanes);
    for (int64_t s = 0; s < top_k; ++s) {
      sum = fma(splat(weights[s]), load_first(parts[s] + i, lanes), sum);
    }
    store_first(y + i, sum, lanes);
  }
}

static float dot(const float* a, const Bf16* b, int64_t n) {
  F16 sum = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const int lanes = lanes_from(n, i);
    sum = fma(load_first(a + i, lanes), load_bf16_first(b + i, lanes), sum);
  }
  return reduce_sum(sum);
}

static void to_bf16_row(const float* x, int64_t n, float scale, Bf16* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const int lanes = lanes_from(n, i);
    store_rounded(out + i, load_first(x + i, lanes) * splat(scale), lanes);
  }
}

static void add(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) {
    const int lanes = lanes_from(n, i);
    store_first(y + i, load_first(y + i, lanes) + load_first(x + i, lanes), lanes);
  }
}

}  // namespace quads::kernels::QUADS_ISA
