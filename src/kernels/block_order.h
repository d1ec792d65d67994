// Where blocks of 16 channels lie along K when some of them are compensated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quads {

/// The order in which blocks of 16 channels lie along K under a mask: those with a selected channel
/// first, each group in rising order, so that the second pass is over whole leading tiles.
struct BlockOrder {
  std::vector<int32_t> position;  // [k / 16] of each block
  int64_t compensated = 0;        // blocks with a selected channel
};
BlockOrder compensated_first(std::span<const uint8_t> mask);

}  // namespace quads
