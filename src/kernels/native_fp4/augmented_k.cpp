#include "kernels/native_fp4/augmented_k.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/native_fp4/layout.h"

namespace quads::kernels::native_fp4 {

AugmentedK augment(int64_t k, std::span<const uint8_t> mask) {
  require(k > 0 && k % kBlock == 0, "native FP4: {} channels; a positive multiple of 16", k);
  require(mask.empty() || std::ssize(mask) == k, "native FP4: a mask of {} channels for {}",
          mask.size(), k);
  AugmentedK result;
  result.k = k;
  result.place.assign(static_cast<size_t>(k / kBlock), -1);
  for (int64_t block = 0; !mask.empty() && block < k / kBlock; ++block) {
    const auto channels = mask.subspan(static_cast<size_t>(block * kBlock), kBlock);
    if (std::ranges::all_of(channels, [](uint8_t m) { return m == 0; })) continue;
    result.place[static_cast<size_t>(block)] = static_cast<int32_t>(result.selected.size());
    result.selected.push_back(static_cast<int32_t>(block));
  }
  result.augmented = augmented_k(k, std::ssize(result.selected));
  return result;
}

}  // namespace quads::kernels::native_fp4
