// Gradients of logits, a block a row; and of the embedding, a block a token.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/gradients/gradient_launch.h"
#include "kernels/cuda/launch.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kEmbedThreads = 128;

/// Combines a value of every thread, by a tree in a fixed order; every thread has the result.
template <class Combine>
__device__ __forceinline__ float reduce(float x, float* of_warp, Combine combine) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = combine(x, __shfl_xor_sync(~0U, x, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warp[0];
  for (int w = 1; w < kWarps; ++w) x = combine(x, of_warp[w]);
  return x;
}

__global__ void __launch_bounds__(kThreads) logits(const __grid_constant__ LogpBackward args) {
  __shared__ float of_warp[kWarps];
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const int vocab = static_cast<int>(args.vocab);
  const float* z = args.z + row * args.vocab;
  auto* dz = reinterpret_cast<uint16_t*>(args.dz) + row * args.ldd;
  float largest = __uint_as_float(0xFF800000U);
  for (int i = threadIdx.x; i < vocab; i += kThreads) largest = z[i] > largest ? z[i] : largest;
  largest = reduce(largest, of_warp, [](float a, float b) { return b > a ? b : a; }) *
            args.inv_temperature;
  float sum = 0.0F;
  for (int i = threadIdx.x; i < vocab; i += kThreads) {
    sum = sum + exp_f32(z[i] * args.inv_temperature - largest);
  }
  sum = reduce(sum, of_warp, [](float a, float b) { return a + b; });
  const float lse = largest + log_f32(sum);
  const int target = args.targets[row];
  const float c = args.dlogp[row] * args.inv_temperature;
  for (int i = threadIdx.x; i < args.ldd; i += kThreads) {
    float gradient = 0.0F;
    if (i < vocab) {
      const float p = exp_f32(z[i] * args.inv_temperature - lse);
      gradient = i == target ? c * (1.0F - p) : -c * p;
    }
    dz[i] = static_cast<uint16_t>(round_bf16(gradient));
  }
}

__global__ void __launch_bounds__(kEmbedThreads)
    embedding(const __grid_constant__ EmbedBackward args) {
  constexpr int kAtOnce = 8;  // rows that a thread waits for together
  wait_for_previous_kernel();
  const int begin = args.first_row[blockIdx.x];
  const int end = args.first_row[blockIdx.x + 1];
  auto* table = reinterpret_cast<float4*>(args.table + args.tokens[blockIdx.x] * args.d);
  for (int64_t c = threadIdx.x; c < args.d / 4; c += kEmbedThreads) {
    float4 sum = table[c];
    for (int first = begin; first < end; first += kAtOnce) {
      float4 parts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < end) {
          parts[i] = reinterpret_cast<const float4*>(args.dx + args.rows[first + i] * args.d)[c];
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= end) continue;
        sum.x = sum.x + parts[i].x;
        sum.y = sum.y + parts[i].y;
        sum.z = sum.z + parts[i].z;
        sum.w = sum.w + parts[i].w;
      }
    }
    table[c] = sum;
  }
}

}  // namespace

void launch_logp_backward(const CudaContext& context, const LogpBackward& args) {
  launch(context, "log-probabilities' backward", logits, static_cast<unsigned>(args.rows), kThreads,
         0, args);
}

void launch_embed_backward(const CudaContext& context, const EmbedBackward& args) {
  launch(context, "embedding's backward", embedding, static_cast<unsigned>(args.tokens_count),
         kEmbedThreads, 0, args);
}

}  // namespace quads::kernels::cuda
