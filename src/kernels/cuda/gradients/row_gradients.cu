// Row gradients: a block takes 32 rows, a warp a row of them at a time; sums over a block's rows
// are made column by column.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/gradients/gradient_launch.h"
#include "kernels/cuda/launch.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = static_cast<int>(kGradientRows);

__device__ __forceinline__ float load_bf16(const Bf16* x) {
  return __uint_as_float(static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(x)) << 16);
}
__device__ __forceinline__ void store_bf16(Bf16* to, float x) {
  *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(round_bf16(x));
}

__global__ void __launch_bounds__(kThreads) round_all(const float4* x, int64_t quads, uint2* out) {
  wait_for_previous_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= quads) return;
  const float4 v = x[i];
  out[i] =
      make_uint2(round_bf16(v.x) | round_bf16(v.y) << 16, round_bf16(v.z) | round_bf16(v.w) << 16);
}

/// What a norm's backward needs of a row: 1 / sqrt(mean(x^2) + eps), and (dh weight . x) inv^2 / d.
struct RowSums {
  float inverse, along;
};

/// By a warp: the lower half sums x^2, the upper half the product, 16 chains each.
__device__ __forceinline__ RowSums sum_row(const float* x, const float* dh, const Bf16* weight,
                                           int64_t d, float eps, int lane) {
  float sum = 0.0F;
  const bool square = lane < 16;
#pragma unroll 4
  for (int64_t i = lane & 15; i < d; i += 16) {
    const float v = x[i];
    const float other = square ? v : dh[i] * load_bf16(weight + i);
    sum = __fmaf_rn(other, v, sum);
  }
  sum = reduce_sum_16(sum);
  const float mean = __fdiv_rn(sum, static_cast<float>(d));
  const float square_mean = __shfl_sync(~0U, mean, 0);
  const float product_mean = __shfl_sync(~0U, mean, 16);
  RowSums sums;
  sums.inverse = __fdiv_rn(1.0F, __fsqrt_rn(square_mean + eps));
  sums.along = product_mean * sums.inverse * sums.inverse;
  return sums;
}

__device__ __forceinline__ float norm_gradient(float x, float dh, float weight,
                                               const RowSums& sums) {
  return sums.inverse * __fmaf_rn(-x, sums.along, dh * weight);
}

__global__ void __launch_bounds__(kThreads)
    norm_rows_backward(const __grid_constant__ NormBackward args) {
  __shared__ float inverse[kRows];
  wait_for_previous_kernel();
  const int lane = threadIdx.x & 31;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), args.rows - begin));
  const auto place = [&](int r) {
    return (args.places == nullptr ? begin + r : args.places[begin + r]) * args.d;
  };
  for (int r = threadIdx.x >> 5; r < rows; r += kWarps) {
    const float* x = args.x + place(r);
    const float* dh = args.dh + (begin + r) * args.d;
    const RowSums sums = sum_row(x, dh, args.weight, args.d, args.eps, lane);
    if (lane == 0) inverse[r] = sums.inverse;
    float* dx = args.dx + place(r);
    const float* dy = args.dy == nullptr ? nullptr : args.dy + (begin + r) * args.d;
    for (int64_t i = lane; i < args.d; i += 32) {
      const float gradient = norm_gradient(x[i], dh[i], load_bf16(args.weight + i), sums);
      dx[i] = (dy == nullptr ? 0.0F : dy[i]) + gradient;
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < args.d; i += kThreads) {
    float sum = 0.0F;
#pragma unroll 4
    for (int r = 0; r < rows; ++r) {
      sum = __fmaf_rn(args.dh[(begin + r) * args.d + i], args.x[place(r) + i] * inverse[r], sum);
    }
    args.partials[blockIdx.x * args.d + i] = sum;
  }
}

/// Heads of queries or of keys.
struct HeadRows {
  int64_t heads, group;  // heads, and how many of them a norm takes together
  int64_t offset;        // of the first in a row of qkv
  const Bf16* norm;
  float* d;         // [rows, heads * head_dim]
  float* partials;  // null: none
};

/// The inverse rotation of the block's rows, in place.
__device__ __forceinline__ void rotate_back(const QkvBackward& args, const HeadRows& of,
                                            int64_t begin, int rows) {
  const int half = args.shape.head_dim / 2;
  const int64_t width = of.heads * args.shape.head_dim;
  const int64_t pairs = of.heads * half;
  for (int64_t i = threadIdx.x; i < rows * pairs; i += kThreads) {
    const int64_t r = begin + i / pairs;
    const int64_t head = i % pairs / half;
    const int64_t c = i % half;
    const float cos = args.cos[args.positions[r] * int64_t{half} + c];
    const float sin = args.sin[args.positions[r] * int64_t{half} + c];
    float* first = of.d + r * width + head * args.shape.head_dim + c;
    const float a = first[0];
    const float b = first[half];
    first[0] = __fmaf_rn(b, sin, a * cos);
    first[half] = __fmaf_rn(-a, sin, b * cos);
  }
}

/// Through the norms to dqkv; `inverse` [rows][groups] gets what the weights' gradients need.
__device__ __forceinline__ void normalise_back(const QkvBackward& args, const HeadRows& of,
                                               int64_t begin, int rows, float* inverse) {
  const int lane = threadIdx.x & 31;
  const int64_t width = of.group * args.shape.head_dim;
  const int groups = static_cast<int>(of.heads / of.group);
  const int64_t qkv_width = args.shape.qkv_width();
  for (int i = threadIdx.x >> 5; i < rows * groups; i += kWarps) {
    const int64_t r = begin + i / groups;
    const int64_t at = i % groups * width;
    const float* x = args.qkv + r * qkv_width + of.offset + at;
    const float* d = of.d + r * of.heads * args.shape.head_dim + at;
    Bf16* out = args.dqkv + r * qkv_width + of.offset + at;
    if (of.norm == nullptr) {
      for (int64_t c = lane; c < width; c += 32) store_bf16(out + c, d[c]);
      continue;
    }
    const RowSums sums = sum_row(x, d, of.norm, width, args.eps, lane);
    if (lane == 0) inverse[i] = sums.inverse;
    for (int64_t c = lane; c < width; c += 32) {
      store_bf16(out + c, norm_gradient(x[c], d[c], load_bf16(of.norm + c), sums));
    }
  }
}

__device__ __forceinline__ void sum_norms(const QkvBackward& args, const HeadRows& of,
                                          int64_t begin, int rows, const float* inverse) {
  if (of.partials == nullptr) return;
  const int64_t width = of.group * args.shape.head_dim;
  const int groups = static_cast<int>(of.heads / of.group);
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    float sum = 0.0F;
#pragma unroll 4
    for (int i = 0; i < rows * groups; ++i) {
      const int64_t r = begin + i / groups;
      const int64_t at = i % groups * width + c;
      sum = __fmaf_rn(of.d[r * of.heads * args.shape.head_dim + at],
                      args.qkv[r * args.shape.qkv_width() + of.offset + at] * inverse[i], sum);
    }
    of.partials[blockIdx.x * width + c] = sum;
  }
}

/// Column sums of the block's rows of d [rows, width].
__device__ __forceinline__ void sum_columns(const float* d, int64_t width, int64_t begin, int rows,
                                            float* to) {
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    float sum = 0.0F;
#pragma unroll 4
    for (int r = 0; r < rows; ++r) sum = sum + d[(begin + r) * width + c];
    to[c] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    qkv_rows_backward(const __grid_constant__ QkvBackward args) {
  extern __shared__ float inverse[];
  wait_for_previous_kernel();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRows;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kRows), args.rows - begin));
  const int64_t q_width = args.shape.q_width();
  const int64_t kv_width = args.shape.kv_width();
  const HeadRows queries{args.shape.heads, args.q_group(), 0,
                         args.q_norm,      args.dq,        args.q_partials};
  const HeadRows keys{args.shape.kv_heads, args.k_group(), q_width,
                      args.k_norm,         args.dk,        args.k_partials};
  float* inverse_keys = inverse + kRows * (queries.heads / queries.group);
  rotate_back(args, queries, begin, rows);
  rotate_back(args, keys, begin, rows);
  __syncthreads();
  normalise_back(args, queries, begin, rows, inverse);
  normalise_back(args, keys, begin, rows, inverse_keys);
  for (int64_t i = threadIdx.x; i < rows * kv_width; i += kThreads) {
    const int64_t r = begin + i / kv_width;
    const int64_t c = i % kv_width;
    store_bf16(args.dqkv + r * args.shape.qkv_width() + q_width + kv_width + c,
               args.dv[r * kv_width + c]);
  }
  __syncthreads();
  sum_norms(args, queries, begin, rows, inverse);
  sum_norms(args, keys, begin, rows, inverse_keys);
  if (args.bias_partials == nullptr) return;
  float* bias = args.bias_partials + blockIdx.x * args.shape.qkv_width();
  sum_columns(args.dq, q_width, begin, rows, bias);
  sum_columns(args.dk, kv_width, begin, rows, bias + q_width);
  sum_columns(args.dv, kv_width, begin, rows, bias + q_width + kv_width);
}

__global__ void __launch_bounds__(kThreads)
    add_all(const float* partials, int64_t count, int64_t width, float* sums) {
  wait_for_previous_kernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= width) return;
  float sum = sums[i];
#pragma unroll 8
  for (int64_t p = 0; p < count; ++p) sum = sum + partials[p * width + i];
  sums[i] = sum;
}

unsigned blocks_of(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

void launch_round_values(const CudaContext& context, const float* x, int64_t count, Bf16* out) {
  launch(context, "rounding", round_all, blocks_of(count / 4), kThreads, 0,
         reinterpret_cast<const float4*>(x), count / 4, reinterpret_cast<uint2*>(out));
}

void launch_norm_backward(const CudaContext& context, const NormBackward& args) {
  launch(context, "norm's backward", norm_rows_backward,
         static_cast<unsigned>(gradient_blocks(args.rows)), kThreads, 0, args);
}

void launch_qkv_backward(const CudaContext& context, const QkvBackward& args) {
  const int64_t groups = args.shape.heads / args.q_group() + args.shape.kv_heads / args.k_group();
  launch(context, "qkv's backward", qkv_rows_backward,
         static_cast<unsigned>(gradient_blocks(args.rows)), kThreads,
         static_cast<int>(groups * kRows * sizeof(float)), args);
}

void launch_add_partials(const CudaContext& context, const float* partials, int64_t count,
                         int64_t width, float* sums) {
  launch(context, "adding partial sums", add_all, blocks_of(width), kThreads, 0, partials, count,
         width, sums);
}

}  // namespace quads::kernels::cuda
