// E4M3 (FP8, the "fn" variant without Inf): bias 7, largest 448, subnormals from 2^-9, NaN 7F and
// FF.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace quads {

inline constexpr float kE4m3Max = 448.0F;
inline constexpr float kE4m3MinSubnormal = 0x1p-9F;
inline constexpr uint8_t kE4m3MaxCode = 0x7E;

inline bool e4m3_is_nan(uint8_t code) { return (code & 0x7FU) == 0x7FU; }

inline float e4m3_decode(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const uint32_t magnitude = code & 0x7FU;
  float value;
  if (magnitude == 0x7F) {
    value = std::bit_cast<float>(0x7FC00000U);
  } else if (magnitude < 8) {
    value = static_cast<float>(magnitude) * kE4m3MinSubnormal;
  } else {
    value = std::bit_cast<float>((magnitude << 20) + (120U << 23));  // 120 = 127 - 7, the biases
  }
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

/// Round to nearest, ties to even; whatever exceeds 448, Inf included, becomes 448 (a cast without
/// that clamp makes a NaN above 464). NaN stays NaN: callers look for non-finite input first.
inline uint8_t e4m3_encode(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7FU;
  if (magnitude >= kE4m3Max) return sign | kE4m3MaxCode;
  if (magnitude < 0x1p-6F) {  // subnormal: a count of 2^-9; rounding up to 8 is the first normal
    const float scaled = magnitude * 512.0F;
    auto count = static_cast<uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(count);
    if (rest > 0.5F || (rest == 0.5F && count % 2 == 1)) ++count;
    return static_cast<uint8_t>(sign | count);
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = (bits + 0x7FFFFU + ((bits >> 20) & 1U)) >> 20;
  return static_cast<uint8_t>(sign | (rounded - (120U << 3)));
}

}  // namespace quads
