// What the packing kernels of every instruction set share and that needs none of its instructions.
#pragma once

#include "kernels/cpu/gemm_kernels.h"

namespace quads::kernels {

/// Error unless the shapes, the row range, the global scale and the block positions fit the format.
void check_pack_args(const PackArgs& args);

}  // namespace quads::kernels
