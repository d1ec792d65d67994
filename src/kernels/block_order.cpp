#include "kernels/block_order.h"

#include <algorithm>

namespace quads {

BlockOrder compensated_first(std::span<const uint8_t> mask) {
  BlockOrder order;
  order.position.resize(mask.size() / 16);
  const auto selected = [&](size_t block) {
    const auto begin = mask.begin() + static_cast<int64_t>(16 * block);
    return std::any_of(begin, begin + 16, [](uint8_t m) { return m != 0; });
  };
  int32_t next = 0;
  for (size_t b = 0; b < order.position.size(); ++b) {
    if (selected(b)) order.position[b] = next++;
  }
  order.compensated = next;
  for (size_t b = 0; b < order.position.size(); ++b) {
    if (!selected(b)) order.position[b] = next++;
  }
  return order;
}

}  // namespace quads
