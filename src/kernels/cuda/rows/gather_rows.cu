#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows/gather_rows_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) gather(GatherRows args) {
  wait_for_previous_kernel();
  const auto* x =
      reinterpret_cast<const float4*>(args.x + int64_t{args.indices[blockIdx.x]} * args.d);
  auto* y = reinterpret_cast<float4*>(args.y + int64_t{blockIdx.x} * args.d);
  for (int i = static_cast<int>(threadIdx.x); i < args.d / 4; i += kThreads) y[i] = x[i];
  let_next_kernel_start();
}

}  // namespace

void launch_gather_rows(const CudaContext& context, const GatherRows& args) {
  launch(context, "gather_rows", gather, static_cast<unsigned>(args.rows), kThreads, 0, args);
}

}  // namespace quads::kernels::cuda
