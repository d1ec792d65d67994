// Embedding, RMS norm and the weighted sum of experts: a block a row.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows/token_rows_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) embed(const __grid_constant__ EmbedRows args) {
  const int64_t row = blockIdx.x;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int token = args.tokens[row];
  const bool there = token >= 0 && token < args.vocab;
  const auto* from = reinterpret_cast<const uint4*>(args.table + (there ? token : 0) * args.d);
  auto* x = reinterpret_cast<uint4*>(args.x + row * args.d);
  for (int64_t i = threadIdx.x; i < args.d / 8; i += kThreads) {
    const uint4 words = there ? from[i] : make_uint4(~0U, ~0U, ~0U, ~0U);
    constexpr uint32_t kHigh = 0xFFFF0000U;
    x[2 * i] = make_uint4(words.x << 16, words.x & kHigh, words.y << 16, words.y & kHigh);
    x[2 * i + 1] = make_uint4(words.z << 16, words.z & kHigh, words.w << 16, words.w & kHigh);
  }
}

/// A row of d values in shared memory, behind it the norm's weight.
extern __shared__ __align__(16) float norm_row[];

/// By all threads, before they wait for the previous kernel: the weight is older.
__device__ __forceinline__ void load_norm_weight(const Bf16* weight, int d) {
  auto* to = reinterpret_cast<uint32_t*>(norm_row + d);
  const auto* from = reinterpret_cast<const uint32_t*>(weight);
  for (int i = threadIdx.x; i < d / 2; i += kThreads) to[i] = from[i];
}

/// By all threads, of which each wrote a part of the row: h = bf16(x inv weight).
__device__ __forceinline__ void normalise(int d, float eps, Bf16* h) {
  __shared__ float inverse;
  const float* x = norm_row;
  __syncthreads();
  if (threadIdx.x < 32) {
    // Sixteen chains over the row, by i % 16 in order; the upper half warp repeats them. So many
    // loads at once that the additions wait for each other alone.
    float sum = 0.0F;
#pragma unroll 32
    for (int i = threadIdx.x & 15; i < d; i += 16) sum = __fmaf_rn(x[i], x[i], sum);
    sum = reduce_sum_16(sum);
    const float mean = __fdiv_rn(sum, static_cast<float>(d));
    if (threadIdx.x == 0) inverse = __fdiv_rn(1.0F, __fsqrt_rn(mean + eps));
  }
  __syncthreads();
  const auto* weight = reinterpret_cast<const uint32_t*>(x + d);
  auto* to = reinterpret_cast<uint32_t*>(h);
  for (int i = threadIdx.x; i < d / 2; i += kThreads) {
    const uint32_t w = weight[i];
    const uint32_t low = round_bf16(x[2 * i] * inverse * __uint_as_float(w << 16));
    const uint32_t high = round_bf16(x[2 * i + 1] * inverse * __uint_as_float(w & 0xFFFF0000U));
    to[i] = low | high << 16;
  }
}

int norm_bytes(int64_t d) { return static_cast<int>(d * (sizeof(float) + sizeof(Bf16))); }

__global__ void __launch_bounds__(kThreads) norm(const __grid_constant__ NormRows args) {
  const int d = static_cast<int>(args.d);
  const int64_t row = blockIdx.x;
  load_norm_weight(args.weight, d);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const auto* from = reinterpret_cast<const float4*>(args.x + row * d);
  for (int i = threadIdx.x; i < d / 4; i += kThreads) {
    reinterpret_cast<float4*>(norm_row)[i] = from[i];
  }
  normalise(d, args.eps, args.h + row * d);
}

/// `normalised`: with the norm of the result.
template <bool normalised>
__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ CombineRows args) {
  constexpr int kAtOnce = 8;  // parts that a thread waits for together
  __shared__ int sorted_rows[kMaxTopK];
  __shared__ float weights[kMaxTopK];
  const int64_t row = blockIdx.x;
  const int64_t width = args.d / 4;
  if constexpr (normalised) load_norm_weight(args.norm_weight, static_cast<int>(args.d));
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (threadIdx.x < args.top_k) {
    sorted_rows[threadIdx.x] = args.sorted_rows[row * args.top_k + threadIdx.x];
    weights[threadIdx.x] = args.weights[row * args.top_k + threadIdx.x];
  }
  __syncthreads();
  const auto* x = reinterpret_cast<const float4*>(args.x) + row * width;
  auto* y = reinterpret_cast<float4*>(args.y) + row * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const auto* parts = reinterpret_cast<const float4*>(args.parts) + i;
    float4 sum = x[i];
    for (int first = 0; first < args.top_k; first += kAtOnce) {
      float4 part[kAtOnce];
      bool there[kAtOnce];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        there[s] = first + s < args.top_k && sorted_rows[first + s] >= 0;
        if (there[s]) part[s] = parts[sorted_rows[first + s] * width];
      }
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        if (!there[s]) continue;
        const float weight = weights[first + s];
        sum.x = __fmaf_rn(weight, part[s].x, sum.x);
        sum.y = __fmaf_rn(weight, part[s].y, sum.y);
        sum.z = __fmaf_rn(weight, part[s].z, sum.z);
        sum.w = __fmaf_rn(weight, part[s].w, sum.w);
      }
    }
    y[i] = sum;
    if constexpr (normalised) reinterpret_cast<float4*>(norm_row)[i] = sum;
  }
  if constexpr (normalised) normalise(static_cast<int>(args.d), args.eps, args.h + row * args.d);
}

__global__ void __launch_bounds__(kThreads) bias(const __grid_constant__ AddBias args) {
  const int64_t row = blockIdx.x;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const auto* from = reinterpret_cast<const uint2*>(args.bias);
  auto* y = reinterpret_cast<float4*>(args.y + row * args.d);
  for (int64_t i = threadIdx.x; i < args.d / 4; i += kThreads) {
    const uint2 pairs = from[i];
    float4 sum = y[i];
    sum.x += __uint_as_float(pairs.x << 16);
    sum.y += __uint_as_float(pairs.x & 0xFFFF0000U);
    sum.z += __uint_as_float(pairs.y << 16);
    sum.w += __uint_as_float(pairs.y & 0xFFFF0000U);
    y[i] = sum;
  }
}

}  // namespace

void launch_embed_rows(const CudaContext& context, const EmbedRows& args) {
  launch(context, "embedding", embed, static_cast<int>(args.rows), kThreads, 0, args);
}

void launch_norm_rows(const CudaContext& context, const NormRows& args) {
  launch(context, "norm of rows", norm, static_cast<int>(args.rows), kThreads, norm_bytes(args.d),
         args);
}

void launch_combine_rows(const CudaContext& context, const CombineRows& args) {
  const auto rows = static_cast<int>(args.rows);
  if (args.h == nullptr) {
    return launch(context, "combining rows", combine<false>, rows, kThreads, 0, args);
  }
  launch(context, "combining and norm of rows", combine<true>, rows, kThreads, norm_bytes(args.d),
         args);
}

void launch_add_bias(const CudaContext& context, const AddBias& args) {
  launch(context, "adding a bias", bias, static_cast<int>(args.rows), kThreads, 0, args);
}

}  // namespace quads::kernels::cuda
