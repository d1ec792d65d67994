#include <cuda_bf16.h>

#include "kernels/cuda/fill_random.h"
#include "kernels/cuda/launch.cuh"

namespace quads::kernels::cuda {
namespace {

// SplitMix64's mixing (Steele, Lea and Flood, OOPSLA 2014).
__device__ uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
  return x ^ x >> 31;
}

__global__ void fill(FillRandom args) {
  wait_for_previous_kernel();
  auto* values = reinterpret_cast<__nv_bfloat16*>(args.values);
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < args.count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const float uniform = static_cast<float>(mix(args.first + i) >> 40) * 0x1p-24F;
    // A uniform number of [-1, 1] has a deviation of 1 / sqrt(3).
    const float value = args.mean + args.deviation * 1.7320508F * (2.0F * uniform - 1.0F);
    values[i] = __float2bfloat16_rn(i < args.valid ? value : 0.0F);
  }
  let_next_kernel_start();
}

}  // namespace

void fill_random(const CudaContext& context, const FillRandom& args) {
  constexpr int kThreads = 256;
  if (args.count == 0) return;
  const int64_t wanted = (args.count + kThreads * 8 - 1) / (kThreads * 8);
  const int64_t most = int64_t{context.multiprocessors} * 16;
  launch(context, "fill_random", fill, static_cast<unsigned>(wanted < most ? wanted : most),
         kThreads, 0, args);
}

}  // namespace quads::kernels::cuda
