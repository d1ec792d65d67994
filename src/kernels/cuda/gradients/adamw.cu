// AdamW: a block a range; sums of squares: a half warp a chunk.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/gradients/adamw.h"
#include "kernels/cuda/launch.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSquareThreads = 128;

__global__ void __launch_bounds__(kSquareThreads)
    squares_of(const float* x, int64_t count, int64_t chunks, double* squares) {
  wait_for_previous_kernel();
  const int64_t chunk = (static_cast<int64_t>(blockIdx.x) * kSquareThreads + threadIdx.x) / 16;
  const int lane = threadIdx.x & 15;
  // A half warp without a chunk takes part in the shuffles.
  const int64_t begin = chunk * kSquaresChunk;
  const int64_t end = min(begin + kSquaresChunk, count);
  double sum = 0.0;
#pragma unroll 8
  for (int64_t i = begin + lane; i < end; i += 16) {
    const double value = x[i];
    sum = __fma_rn(value, value, sum);  // the product of two floats is exact
  }
#pragma unroll
  for (int d = 8; d > 0; d /= 2) sum = sum + __shfl_xor_sync(~0U, sum, d);
  if (lane == 0 && chunk < chunks) squares[chunk] = sum;
}

__global__ void __launch_bounds__(kThreads) step(const __grid_constant__ Adamw args) {
  wait_for_previous_kernel();
  const AdamwRange range = args.ranges[blockIdx.x];
  const AdamwParams& p = args.params;
  const float beta1_rest = 1.0F - p.beta1;
  const float beta2_rest = 1.0F - p.beta2;
  const float correction2 = __fsqrt_rn(p.bias_correction2);
  const float step = __fdiv_rn(p.lr, p.bias_correction1);
  const float decay = range.decay != 0 ? p.lr * p.weight_decay : 0.0F;
  for (int i = threadIdx.x; i < range.count; i += kThreads) {
    const int64_t at = range.begin + i;
    const float g = args.grads[at] * p.grad_scale;
    const float m_old = args.m[at];
    const float m = __fmaf_rn(beta1_rest, g - m_old, m_old);
    const float v = __fmaf_rn(p.beta2, args.v[at], beta2_rest * (g * g));
    const float update = __fdiv_rn(m, __fdiv_rn(__fsqrt_rn(v), correction2) + p.eps);
    const float w_old = args.master[at];
    const float w = __fmaf_rn(-step, update, __fmaf_rn(-decay, w_old, w_old));
    const uint32_t value = round_bf16(w);
    args.m[at] = m;
    args.v[at] = v;
    args.master[at] = args.bf16_masters ? __uint_as_float(value << 16) : w;
    reinterpret_cast<uint16_t*>(args.values)[at] = static_cast<uint16_t>(value);
  }
}

__global__ void __launch_bounds__(kThreads)
    round_all(const float* master, int64_t count, uint16_t* values) {
  wait_for_previous_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) values[i] = static_cast<uint16_t>(round_bf16(master[i]));
}

__global__ void __launch_bounds__(kThreads)
    widen_all(const uint16_t* values, int64_t count, float* master) {
  wait_for_previous_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) master[i] = __uint_as_float(static_cast<uint32_t>(values[i]) << 16);
}

unsigned blocks_of(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

void sum_squares(const CudaContext& context, const float* x, int64_t count, double* squares) {
  const int64_t chunks = square_chunks(count);
  if (chunks == 0) return;
  constexpr int kChunks = kSquareThreads / 16;  // of a block
  launch(context, "sums of squares", squares_of,
         static_cast<unsigned>((chunks + kChunks - 1) / kChunks), kSquareThreads, 0, x, count,
         chunks, squares);
}

void adamw(const CudaContext& context, const Adamw& args) {
  if (args.range_count == 0) return;
  launch(context, "AdamW", step, static_cast<unsigned>(args.range_count), kThreads, 0, args);
}

void round_masters(const CudaContext& context, const float* master, int64_t count, Bf16* values) {
  if (count == 0) return;
  launch(context, "rounding masters", round_all, blocks_of(count), kThreads, 0, master, count,
         reinterpret_cast<uint16_t*>(values));
}

void widen_values(const CudaContext& context, const Bf16* values, int64_t count, float* master) {
  if (count == 0) return;
  launch(context, "widening values", widen_all, blocks_of(count), kThreads, 0,
         reinterpret_cast<const uint16_t*>(values), count, master);
}

}  // namespace quads::kernels::cuda
