// Log-softmax over a vocabulary: its normaliser, entropy and gradient.
//
// Everywhere t = z * inv_temperature, rounded once, and sums run in 16 lanes by i % 16 in order,
// then the tree. -Inf logits have probability 0; a NaN or +Inf logit, or only -Inf, gives NaN.
#pragma once

#include "kernels/cpu/rows_elementwise.inl.h"
#include "kernels/cpu/vec_math.h"

namespace quads::kernels::QUADS_ISA {

/// The largest of n values; NaN is passed over; -Inf when nothing is left.
static inline float row_max(const float* z, int64_t n) {
  const F16 lowest = splat(-__builtin_inff());
  F16 largest = lowest;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) largest = max(load(z + i), largest);
  if (i < n) {
    const int lanes = lanes_from(n, i);
    largest = max(select(first_lanes(lanes), load_first(z + i, lanes), lowest), largest);
  }
  return reduce_max(largest);
}

/// sum of exp(z * inv_temperature - shift).
static inline float sum_exp(const float* z, int64_t n, float inv_temperature, float shift) {
  F16 sum = zero();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    sum = sum + exp(load(z + i) * splat(inv_temperature) - splat(shift));
  }
  if (i < n) {
    const int lanes = lanes_from(n, i);
    const F16 e = exp(load_first(z + i, lanes) * splat(inv_temperature) - splat(shift));
    sum = sum + select(first_lanes(lanes), e, zero());
  }
  return reduce_sum(sum);
}

// m + log(sum of exp(t - m)), m the largest t.
static float log_sum_exp(const float* z, int64_t n, float inv_temperature) {
  const float largest = row_max(z, n) * inv_temperature;
  return largest + log_scalar(sum_exp(z, n, inv_temperature, largest));
}

// sum of p (lse - t), p = exp(t - lse), as one chain of fused multiply-adds a lane.
static float entropy(const float* z, int64_t n, float inv_temperature, float lse) {
  F16 sum = zero();
  for (int64_t i = 0; i < n; i += 16) {
    const int lanes = lanes_from(n, i);
    const F16 t = load_first(z + i, lanes) * splat(inv_temperature);
    const F16 p = exp(t - splat(lse));
    // p log p -> 0 with p: without this a -Inf logit would give 0 * Inf.
    const F16 information = select(equal(p, zero()), zero(), splat(lse) - t);
    sum = fma(select(first_lanes(lanes), p, zero()), information, sum);
  }
  return reduce_sum(sum);
}

// With c = dlogp * inv_temperature: dz[i] = -c p[i], and c (1 - p[i]) at the target.
static void log_softmax_backward(const float* z, int64_t n, float inv_temperature, float lse,
                                 int64_t target, float dlogp, Bf16* dz) {
  const float c = dlogp * inv_temperature;
  for (int64_t i = 0; i < n; i += 16) {
    const int lanes = lanes_from(n, i);
    const F16 p = exp(load_first(z + i, lanes) * splat(inv_temperature) - splat(lse));
    store_rounded(dz + i, splat(-c) * p, lanes);
  }
  const float p = exp_scalar(z[target] * inv_temperature - lse);
  store_rounded(dz + target, splat(c * (1.0F - p)), 1);
}

}  // namespace quads::kernels::QUADS_ISA
