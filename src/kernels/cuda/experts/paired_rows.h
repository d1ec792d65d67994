// The order of gate_up's rows in fragments from which a thread shall have the gate and the up of a
// channel: of every 16 rows eight gates, then their ups. Plain C++, shared by host and kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/fragment_codes.h"

namespace quads::kernels::cuda {

/// The row of W [n, k], gates and then ups, that fragments have at `row`.
QUADS_HOST_DEVICE constexpr int64_t paired_row(int64_t row, int64_t n) {
  return row / 16 * 8 + row % 8 + (row % 16 < 8 ? 0 : n / 2);
}

}  // namespace quads::kernels::cuda
