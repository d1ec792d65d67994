// Which blocks an augmented K repeats (layout.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quads::kernels::native_fp4 {

struct AugmentedK {
  int64_t k = 0;          // channels, a multiple of 16
  int64_t augmented = 0;  // k'
  /// [k / 16] the place of a block among the compensated ones; -1: it is not compensated.
  std::vector<int32_t> place;
  /// The compensated blocks, rising.
  std::vector<int32_t> selected;
};

/// Of a mask [k], not 0 where a channel is compensated; an empty one selects nothing. Error unless
/// k is a positive multiple of 16 and the mask fits.
AugmentedK augment(int64_t k, std::span<const uint8_t> mask);

}  // namespace quads::kernels::native_fp4
