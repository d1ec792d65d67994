// BF16: the upper half of an FP32, rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace quads {

struct Bf16 {
  uint16_t bits;
  friend bool operator==(Bf16, Bf16) = default;  // by bits
};

inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

/// Round to nearest even; overflow gives Inf, NaN stays a quiet NaN of the same sign.
inline Bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {static_cast<uint16_t>((u >> 16) | 0x0040U)};
  return {static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16)};
}

}  // namespace quads
