// The optimizer's step and the sum of squares behind the gradient norm.
#pragma once

#include "kernels/cpu/rows_elementwise.inl.h"

namespace quads::kernels::QUADS_ISA {

// Loshchilov & Hutter, "Decoupled weight decay regularization" (2019), algorithm 2, as
//   g      = grad * grad_scale
//   m      = fma(1 - beta1, g - m, m)
//   v      = fma(beta2, v, (1 - beta2) * (g * g))
//   update = m / (sqrt(v) / sqrt(bias_correction2) + eps)
//   master = fnma(lr / bias_correction1, update, fnma(lr * weight_decay, master, master))
// The decay is fused: 1 - lr * weight_decay keeps few digits of a small product in FP32.
static void adamw(int64_t n, const AdamwParams& params, const float* grad, float* master, float* m,
                  float* v, Bf16* value) {
  const F16 grad_scale = splat(params.grad_scale);
  const F16 beta1_rest = splat(1.0F - params.beta1);
  const F16 beta2 = splat(params.beta2);
  const F16 beta2_rest = splat(1.0F - params.beta2);
  const F16 correction2 = sqrt(splat(params.bias_correction2));
  const F16 eps = splat(params.eps);
  const F16 step = splat(params.lr / params.bias_correction1);
  const F16 decay = splat(params.lr * params.weight_decay);
  for (int64_t i = 0; i < n; i += 16) {
    const int lanes = lanes_from(n, i);
    const F16 g = load_first(grad + i, lanes) * grad_scale;
    const F16 m_old = load_first(m + i, lanes);
    const F16 m_new = fma(beta1_rest, g - m_old, m_old);
    const F16 v_new = fma(beta2, load_first(v + i, lanes), beta2_rest * (g * g));
    const F16 update = m_new / (sqrt(v_new) / correction2 + eps);
    const F16 w_old = load_first(master + i, lanes);
    const F16 w_new = fnma(step, update, fnma(decay, w_old, w_old));
    store_first(m + i, m_new, lanes);
    store_first(v + i, v_new, lanes);
    store_first(master + i, w_new, lanes);
    store_rounded(value + i, w_new, lanes);
  }
}

static double sum_of_squares(const float* x, int64_t n) {
  double sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      const double value = x[i + lane];
      sums[lane] += value * value;
    }
  }
  for (; i < n; ++i) {
    const double value = x[i];
    sums[i % 16] += value * value;
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

}  // namespace quads::kernels::QUADS_ISA
