// Inputs and helpers shared by the tests of the arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "numerics/bf16.h"

namespace quads {

/// Codes written as hex digits, in element order; blanks are skipped.
inline std::vector<uint8_t> hex_codes(std::string_view text) {
  std::vector<uint8_t> codes;
  for (const char c : text) {
    if (c != ' ') codes.push_back(static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'A' + 10));
  }
  return codes;
}

/// BF16 values of both signs whose magnitudes spread over `octaves` powers of two below 1, every
/// block of 16 with a spread of its own.
inline std::vector<float> spread_bf16(uint64_t seed, int64_t count, int octaves) {
  RandomSequence random(seed, RandomStream::kTask, 0);
  std::vector<float> x(count);
  uint32_t block_octaves = 1;
  for (int64_t i = 0; i < count; ++i) {
    if (i % 16 == 0) block_octaves = 1 + random.below(octaves);
    const float magnitude =
        std::ldexp(1.0F + random.uniform(), -static_cast<int>(random.below(block_octaves)));
    x[i] = to_float(to_bf16(random.below(2) == 0 ? magnitude : -magnitude));
  }
  return x;
}

/// The message of the Error that `call` throws; empty if it throws none.
template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace quads
