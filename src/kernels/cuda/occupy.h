// Keeps a stream busy, so that what is launched behind it lies ready and runs without pauses.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

/// Launches one kernel that ends after about so many microseconds.
void occupy(const CudaContext& context, int64_t microseconds);

}  // namespace quads::kernels::cuda
