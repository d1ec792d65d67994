// Elementary functions on sixteen lanes, equal to numerics/math.h bit for bit: the same operations
// in the same order in every lane.
#pragma once

#include "kernels/cpu/vec16.h"
#include "numerics/math.h"

namespace quads::kernels::QUADS_ISA {

/// exp_f32 of every lane.
static inline F16 exp(F16 x) {
  const F16 round_to_int = splat(0x1.8p23F);
  const F16 clamped = min(splat(kExpMax), x);  // a NaN lane stays: min gives the second operand
  const F16 shifted = fma(clamped, splat(0x1.715476p+0F), round_to_int);
  const F16 n = shifted - round_to_int;
  F16 r = fnma(n, splat(0x1.62e4p-1F), clamped);
  r = fnma(n, splat(0x1.7f7d1cp-20F), r);
  F16 p = splat(1.9875691500e-4F);
  p = fma(p, r, splat(1.3981999507e-3F));
  p = fma(p, r, splat(8.3334519073e-3F));
  p = fma(p, r, splat(4.1665795894e-2F));
  p = fma(p, r, splat(1.6666665459e-1F));
  p = fma(p, r, splat(5.0000001201e-1F));
  p = fma(p, r * r, r);
  p = p + splat(1.0F);
  const F16 power = from_bits(shift_left<23>(bits(shifted) + splat_int(127)));
  return select(less(x, splat(kExpMin)), zero(), p * power);
}

/// log_f32 of every lane.
static inline F16 log(F16 x) {
  const I16 sqrt_half = splat_int(0x3F3504F3);
  const I16 offset = bits(x) - sqrt_half;
  // The nine bits above the significand, sign-extended: the exponent.
  const I16 exponent =
      ((shift_right<23>(offset) + splat_int(256)) & splat_int(511)) - splat_int(256);
  const F16 e = to_float(exponent);
  const F16 f = from_bits((offset & splat_int(0x7FFFFF)) + sqrt_half) - splat(1.0F);
  const F16 square = f * f;
  F16 p = splat(7.0376836292e-2F);
  p = fma(p, f, splat(-1.1514610310e-1F));
  p = fma(p, f, splat(1.1676998740e-1F));
  p = fma(p, f, splat(-1.2420140846e-1F));
  p = fma(p, f, splat(1.4249322787e-1F));
  p = fma(p, f, splat(-1.6668057665e-1F));
  p = fma(p, f, splat(2.0000714765e-1F));
  p = fma(p, f, splat(-2.4999993993e-1F));
  p = fma(p, f, splat(3.3333331174e-1F));
  p = p * f;
  p = fma(e, splat(-2.12194440e-4F), p * square);
  p = fnma(splat(0.5F), square, p);
  p = f + p;
  p = fma(e, splat(0x1.63p-1F), p);
  const F16 infinity = splat(__builtin_inff());
  p = select(less(x, infinity), p, x);
  return select(less(x, splat(0x1p-126F)), zero() - infinity, p);
}

/// exp_f32 and log_f32 of one number, compiled for this instruction set (numerics' inline copies
/// must not be emitted from files with their own compiler flags).
static inline float exp_scalar(float x) {
  float lanes[16];
  store(lanes, exp(splat(x)));
  return lanes[0];
}
static inline float log_scalar(float x) {
  float lanes[16];
  store(lanes, log(splat(x)));
  return lanes[0];
}

/// The two factors of the logistic function: sigmoid(x) = numerator / denominator, with
/// t = exp(-|x|), denominator 1 + t, numerator 1 for x >= 0 and t below: never an overflow.
struct Sigmoid {
  F16 numerator, denominator;
};
static inline Sigmoid sigmoid_parts(F16 x) {
  const F16 one = splat(1.0F);
  const F16 t = exp(from_bits(bits(x) | splat_int(INT32_MIN)));
  return {select(less(x, zero()), t, one), one + t};
}

/// x * sigmoid(x), as (x * numerator) / denominator.
static inline F16 silu(F16 x) {
  const Sigmoid s = sigmoid_parts(x);
  return (x * s.numerator) / s.denominator;
}

}  // namespace quads::kernels::QUADS_ISA
