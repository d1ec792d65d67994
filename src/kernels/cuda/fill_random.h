// Random weights made on the device, for benchmarks.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// Element i is uniform with the mean and the standard deviation, drawn by a hash of first + i; 0
/// from `valid` on.
struct FillRandom {
  Bf16* values = nullptr;  // [count] on the device
  int64_t count = 0;
  int64_t first = 0;
  int64_t valid = 0;
  float mean = 0.0F;
  float deviation = 0.0F;
};

/// Launches one kernel.
void fill_random(const CudaContext& context, const FillRandom& args);

}  // namespace quads::kernels::cuda
