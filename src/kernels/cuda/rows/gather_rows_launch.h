// What lies between checking the gathering of rows and its kernel.
#pragma once

#include "kernels/cuda/rows/gather_rows.h"

namespace quads::kernels::cuda {

void launch_gather_rows(const CudaContext& context, const GatherRows& args);

}  // namespace quads::kernels::cuda
