// RMS norm and rotary position embedding of rows, forward and backward; entries of the table of
// rows.inl.h.
//
// Order of operations. The mean square of a row of d elements: lane i % 16 holds one chain of fused
// multiply-adds over its elements in order, from 0; the lanes are added by the one tree; the sum is
// divided by float(d). inv_rms = 1 / sqrt(mean + eps), both correctly rounded. RoPE turns the pair
// (a, b) = (y[i], y[i + half]) into fma(-b, sin, a * cos), fma(a, sin, b * cos).
#pragma once

#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/vec16.h"

namespace quads::kernels::QUADS_ISA {
namespace {

// Elements that the vector starting at i holds, for rows that are no multiple of 16.
inline int lanes_left(int64_t d, int64_t i) { return d - i < 16 ? static_cast<int>(d - i) : 16; }

// a[i] * b[i], summed: 16 chains over the row, then the tree.
inline float dot_lanes(const float* a, const float* b, int64_t d) {
  F16 sum = zero();
  for (int64_t i = 0; i < d; i += 16) {
    const int n = lanes_left(d, i);
    sum = fma(load_first(a + i, n), load_first(b + i, n), sum);
  }
  return reduce_sum(sum);
}

// The builtin: std::sqrt and quads::inv_sqrt are inline functions, whose copies must not be emitted
// from files with their own compiler flags.
inline float inverse_rms(const float* x, int64_t d, float eps) {
  return 1.0F / __builtin_sqrtf(dot_lanes(x, x, d) / static_cast<float>(d) + eps);
}

void rmsnorm(const float* x, int64_t ldx, int64_t rows, int64_t d, const Bf16* weight, float eps,
             float out_scale, Bf16* out, int64_t ldo, float* inv_rms) {
  const F16 scale = splat(out_scale);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * ldx;
    const float inv = inverse_rms(row, d, eps);
    if (inv_rms != nullptr) inv_rms[r] = inv;
    const F16 inv16 = splat(inv);
    for (int64_t i = 0; i < d; i += 16) {
      const int n = lanes_left(d, i);
      const F16 y = load_first(row + i, n) * inv16 * load_bf16_first(weight + i, n) * scale;
      store_bf16_first(out + r * ldo + i, y, n);
    }
  }
}

// The gradient of y = x * inv * weight with inv = 1 / sqrt(mean(x^2) + eps), one row. With
// g = dout * weight: dx = inv * (g - x * (g . x) * inv^2 / d), handed to write(i, n, dx);
// dweight += dout * x * inv. A null weight stands for ones.
template <class Write>
inline void norm_row_backward(const float* x, float inv, int64_t d, const Bf16* weight,
                              const float* dout, float* dweight, Write write) {
  const auto gradient = [&](int64_t i, int n) {
    return load_first(dout + i, n) * load_bf16_first(weight + i, n);
  };
  F16 sum = zero();
  for (int64_t i = 0; i < d; i += 16) {
    const int n = lanes_left(d, i);
    sum = fma(gradient(i, n), load_first(x + i, n), sum);
  }
  const F16 along = splat(reduce_sum(sum) / static_cast<float>(d) * inv * inv);
  const F16 inv16 = splat(inv);
  for (int64_t i = 0; i < d; i += 16) {
    const int n = lanes_left(d, i);
    const F16 x16 = load_first(x + i, n);
    const F16 dy = load_first(dout + i, n);
    const F16 dx = inv16 * fnma(x16, along, gradient(i, n));
    store_first(dweight + i, fma(dy, x16 * inv16, load_first(dweight + i, n)), n);
    write(i, n, dx);
  }
}

void rmsnorm_backward(const float* x, int64_t ldx, const float* inv_rms, int64_t rows, int64_t d,
                      const Bf16* weight, const float* dout, int64_t ldd, float* dx, int64_t lddx,
                      float* dweight) {
  for (int64_t r = 0; r < rows; ++r) {
    float* out = dx + r * lddx;
    norm_row_backward(x + r * ldx, inv_rms[r], d, weight, dout + r * ldd, dweight,
                      [out](int64_t i, int n, F16 gradient) {
                        store_first(out + i, load_first(out + i, n) + gradient, n);
                      });
  }
}

void qk_norm_rope(const float* in, int64_t heads, int64_t head_dim, const Bf16* weight,
                  int64_t norm_heads, float eps, const float* cos, const float* sin, Bf16* out) {
  const int64_t half = head_dim / 2;
  F16 inv = splat(1.0F);
  for (int64_t h = 0; h < heads; ++h) {
    const float* x = in + h * head_dim;
    Bf16* y = out + h * head_dim;
    const int64_t of_group = h % norm_heads;
    if (weight != nullptr && of_group == 0) inv = splat(inverse_rms(x, norm_heads * head_dim, eps));
    const Bf16* w = weight == nullptr ? nullptr : weight + of_group * head_dim;
    for (int64_t i = 0; i < half; i += 16) {
      const int n = lanes_left(half, i);
      F16 a = load_first(x + i, n);
      F16 b = load_first(x + half + i, n);
      if (weight != nullptr) {
        a = a * inv * load_bf16_first(w + i, n);
        b = b * inv * load_bf16_first(w + half + i, n);
      }
      const F16 c = load_first(cos + i, n);
      const F16 s = load_first(sin + i, n);
      store_bf16_first(y + i, fnma(b, s, a * c), n);
      store_bf16_first(y + half + i, fma(a, s, b * c), n);
    }
  }
}

void qk_norm_rope_backward(const float* in, int64_t heads, int64_t head_dim, const Bf16* weight,
                           int64_t norm_heads, float eps, const float* cos, const float* sin,
                           const float* dout, float* din, float* dweight) {
  const int64_t half = head_dim / 2;
  // The inverse rotation; din holds the gradient of the norm's output meanwhile.
  for (int64_t h = 0; h < heads; ++h) {
    const float* dy = dout + h * head_dim;
    float* dx = din + h * head_dim;
    for (int64_t i = 0; i < half; i += 16) {
      const int n = lanes_left(half, i);
      const F16 a = load_first(dy + i, n);
      const F16 b = load_first(dy + half + i, n);
      const F16 c = load_first(cos + i, n);
      const F16 s = load_first(sin + i, n);
      store_first(dx + i, fma(b, s, a * c), n);
      store_first(dx + half + i, fnma(a, s, b * c), n);
    }
  }
  if (weight == nullptr) return;
  const int64_t width = norm_heads * head_dim;
  for (int64_t g = 0; g < heads / norm_heads; ++g) {
    const float* x = in + g * width;
    float* dx = din + g * width;
    norm_row_backward(x, inverse_rms(x, width, eps), width, weight, dx, dweight,
                      [dx](int64_t i, int n, F16 gradient) { store_first(dx + i, gradient, n); });
  }
}

}  // namespace
}  // namespace quads::kernels::QUADS_ISA
