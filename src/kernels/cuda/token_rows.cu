// RMS norm and the weighted sum of experts: a block a row.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/token_rows_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) norm(const __grid_constant__ NormRows args) {
  extern __shared__ __align__(16) float x[];
  __shared__ float inverse;
  const int d = static_cast<int>(args.d);
  const int64_t row = blockIdx.x;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const auto* from = reinterpret_cast<const float4*>(args.x + row * d);
  for (int i = threadIdx.x; i < d / 4; i += kThreads) reinterpret_cast<float4*>(x)[i] = from[i];
  __syncthreads();
  if (threadIdx.x < 32) {
    // Sixteen chains over the row, by i % 16 in order; the upper half warp repeats them.
    float sum = 0.0F;
#pragma unroll 8
    for (int i = threadIdx.x & 15; i < d; i += 16) sum = __fmaf_rn(x[i], x[i], sum);
    sum = reduce_sum_16(sum);
    const float mean = __fdiv_rn(sum, static_cast<float>(d));
    if (threadIdx.x == 0) inverse = __fdiv_rn(1.0F, __fsqrt_rn(mean + args.eps));
  }
  __syncthreads();
  const auto* weight = reinterpret_cast<const uint32_t*>(args.weight);
  auto* h = reinterpret_cast<uint32_t*>(args.h + row * d);
  for (int i = threadIdx.x; i < d / 2; i += kThreads) {
    const uint32_t w = weight[i];
    const uint32_t low = round_bf16(x[2 * i] * inverse * __uint_as_float(w << 16));
    const uint32_t high = round_bf16(x[2 * i + 1] * inverse * __uint_as_float(w & 0xFFFF0000U));
    h[i] = low | high << 16;
  }
}

__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ CombineRows args) {
  const int64_t row = blockIdx.x;
  const int64_t width = args.d / 4;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const auto* x = reinterpret_cast<const float4*>(args.x) + row * width;
  auto* y = reinterpret_cast<float4*>(args.y) + row * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    float4 sum = x[i];
    for (int s = 0; s < args.top_k; ++s) {
      const int64_t sorted = args.sorted_rows[row * args.top_k + s];
      if (sorted < 0) continue;
      const float weight = args.weights[row * args.top_k + s];
      const float4 part = reinterpret_cast<const float4*>(args.parts)[sorted * width + i];
      sum.x = __fmaf_rn(weight, part.x, sum.x);
      sum.y = __fmaf_rn(weight, part.y, sum.y);
      sum.z = __fmaf_rn(weight, part.z, sum.z);
      sum.w = __fmaf_rn(weight, part.w, sum.w);
    }
    y[i] = sum;
  }
}

}  // namespace

void launch_norm_rows(const CudaContext& context, const NormRows& args) {
  launch(context, "norm of rows", norm, static_cast<int>(args.rows), kThreads,
         static_cast<int>(args.d * sizeof(float)), args);
}

void launch_combine_rows(const CudaContext& context, const CombineRows& args) {
  launch(context, "combining rows", combine, static_cast<int>(args.rows), kThreads, 0, args);
}

}  // namespace quads::kernels::cuda
