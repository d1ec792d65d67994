// Which of PyTorch's operators multiplies native FP4 operands on a device.
#pragma once

#include <cstdint>

namespace quads::kernels::native_fp4 {

enum class Route : uint8_t {
  kGrouped,   // `_scaled_grouped_mm`: all groups at once
  kPerGroup,  // `_scaled_mm`, group by group: PyTorch has its grouped product on 10.x only
};

/// Of a compute capability (major.minor): 10.x kGrouped, later ones kPerGroup. Error that names the
/// capability below 10.0, where there are no FP4 units.
Route choose_route(int major, int minor);

}  // namespace quads::kernels::native_fp4
