// E2M1 (FP4): codes 0..7 are 0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign.
#pragma once

#include <cmath>
#include <cstdint>

namespace quads {

inline constexpr float kE2m1Max = 6.0F;

/// The value of the low four bits of `code`; code 8 is -0.
inline float e2m1_decode(uint8_t code) {
  constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                 -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  return kValues[code & 0xFU];
}

/// The code of x / scale without dividing: |x| is compared with the seven boundaries times `scale`.
/// Nearest value, ties to the even code, saturating at +-6; the sign of a zero is kept.
/// Exact while boundary * scale is, as for an E4M3 value times a power of two (7 significand bits).
/// `scale` > 0; x is not NaN.
inline uint8_t e2m1_encode_scaled(float x, float scale) {
  const float magnitude = std::fabs(x);
  // The strict comparisons send a tie down and the others up: to the even code on either side.
  const int code = (magnitude > 0.25F * scale) + (magnitude >= 0.75F * scale) +
                   (magnitude > 1.25F * scale) + (magnitude >= 1.75F * scale) +
                   (magnitude > 2.5F * scale) + (magnitude >= 3.5F * scale) +
                   (magnitude > 5.0F * scale);
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

/// The code of an x that was scaled already; as above.
inline uint8_t e2m1_encode(float x) { return e2m1_encode_scaled(x, 1.0F); }

}  // namespace quads
