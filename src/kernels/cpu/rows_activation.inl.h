// The gated activation silu(gate) * up and its gradient.
#pragma once

#include "kernels/cpu/rows_elementwise.inl.h"
#include "kernels/cpu/vec_math.h"

namespace quads::kernels::QUADS_ISA {

static void silu_mul(const float* gu, int64_t ldgu, int64_t rows, int64_t width, Bf16* h,
                     int64_t ldh) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* gate = gu + r * ldgu;
    const float* up = gate + width;
    for (int64_t i = 0; i < width; i += 16) {
      const int lanes = lanes_from(width, i);
      const F16 product = silu(load_first(gate + i, lanes)) * load_first(up + i, lanes);
      store_rounded(h + r * ldh + i, product, lanes);
    }
  }
}

// s = sigmoid(g): d gate = dh u s (1 + g (1 - s)), d up = dh g s; h's rounding passes straight
// through.
static void silu_mul_backward(const float* gu, int64_t ldgu, const float* dh, int64_t lddh,
                              int64_t rows, int64_t width, Bf16* dgu, int64_t lddgu) {
  const F16 one = splat(1.0F);
  for (int64_t r = 0; r < rows; ++r) {
    const float* gate = gu + r * ldgu;
    const float* up = gate + width;
    Bf16* dgate = dgu + r * lddgu;
    Bf16* dup = dgate + width;
    for (int64_t i = 0; i < width; i += 16) {
      const int lanes = lanes_from(width, i);
      const F16 g = load_first(gate + i, lanes);
      const F16 grad = load_first(dh + r * lddh + i, lanes);
      const Sigmoid parts = sigmoid_parts(g);
      const F16 s = parts.numerator / parts.denominator;
      const F16 slope = s * fma(g, one - s, one);
      store_rounded(dgate + i, grad * load_first(up + i, lanes) * slope, lanes);
      store_rounded(dup + i, grad * (g * s), lanes);
    }
  }
}

}  // namespace quads::kernels::QUADS_ISA
