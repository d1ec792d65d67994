// Checks of per-token arrays, shared by the losses and the gap.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"

namespace quads {

inline void require_finite(std::span<const float> values, std::string_view name) {
  for (size_t i = 0; i < values.size(); ++i) {
    require(std::isfinite(values[i]), "{}: token {} is {}, expected a finite value", name, i,
            values[i]);
  }
}

inline void require_size(size_t size, size_t expected, std::string_view name) {
  require(size == expected, "{}: {} values, expected {}", name, size, expected);
}

/// `offsets` [num_sequences + 1] must run from 0 to `num_tokens` without stepping back.
inline void require_offsets(std::span<const int32_t> offsets, size_t num_tokens) {
  require(!offsets.empty(), "sequence_offsets: empty, expected num_sequences + 1 values");
  require(offsets.front() == 0, "sequence_offsets: starts at {}, expected 0", offsets.front());
  for (size_t s = 1; s < offsets.size(); ++s) {
    require(offsets[s] >= offsets[s - 1],
            "sequence_offsets: entry {} is {}, less than {} before it", s, offsets[s],
            offsets[s - 1]);
  }
  require(static_cast<size_t>(offsets.back()) == num_tokens,
          "sequence_offsets: ends at {}, expected {} (the number of tokens)", offsets.back(),
          num_tokens);
}

}  // namespace quads
