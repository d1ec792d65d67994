// What lies between checking the arguments of routing and its kernels.
#pragma once

#include "kernels/cuda/experts/route.h"

namespace quads::kernels::cuda {

void launch_route_rows(const CudaContext& context, const RouteRows& args);
void launch_sort_slots(const CudaContext& context, const SortSlots& args);

}  // namespace quads::kernels::cuda
