// QK norm, RoPE and the way to the KV pages: a block a row, a half warp a head.
#include <algorithm>

#include "kernels/cuda/attention/qkv_rows_launch.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kPagePositions = 16;

/// 1 / sqrt(mean(x^2) + eps): sixteen chains, by i % 16 in order, a lane of the half warp each.
__device__ __forceinline__ float inverse_rms(const float* x, int d, float eps, int lane) {
  float sum = 0.0F;
#pragma unroll 8
  for (int i = lane; i < d; i += 16) sum = __fmaf_rn(x[i], x[i], sum);
  const float mean = __fdiv_rn(reduce_sum_16(sum), static_cast<float>(d));
  return __fdiv_rn(1.0F, __fsqrt_rn(mean + eps));
}

__device__ __forceinline__ float2 times(float2 x, float inverse, const uint16_t* weight) {
  const uint32_t w = *reinterpret_cast<const uint32_t*>(weight);
  return make_float2(x.x * inverse * __uint_as_float(w << 16),
                     x.y * inverse * __uint_as_float(w & 0xFFFF0000U));
}

/// By a half warp: one head, normalised by `inverse` if there is a weight, rotated, rounded.
__device__ __forceinline__ void rotate(const float* x, int head_dim, const uint16_t* weight,
                                       float inverse, const float* cos, const float* sin, int lane,
                                       uint16_t* out) {
  const int half = head_dim / 2;
  for (int i = lane * 2; i < half; i += 32) {
    float2 a = *reinterpret_cast<const float2*>(x + i);
    float2 b = *reinterpret_cast<const float2*>(x + half + i);
    if (weight != nullptr) {
      a = times(a, inverse, weight + i);
      b = times(b, inverse, weight + half + i);
    }
    const float2 c = *reinterpret_cast<const float2*>(cos + i);
    const float2 s = *reinterpret_cast<const float2*>(sin + i);
    *reinterpret_cast<uint32_t*>(out + i) = round_bf16(__fmaf_rn(-b.x, s.x, a.x * c.x)) |
                                            round_bf16(__fmaf_rn(-b.y, s.y, a.y * c.y)) << 16;
    *reinterpret_cast<uint32_t*>(out + half + i) = round_bf16(__fmaf_rn(a.x, s.x, b.x * c.x)) |
                                                   round_bf16(__fmaf_rn(a.y, s.y, b.y * c.y)) << 16;
  }
}

__global__ void __launch_bounds__(kMaxThreads) place_qkv(const __grid_constant__ QkvRows args) {
  __shared__ float whole_inverse[2];
  __shared__ __align__(16) float angles[2][kMaxHeadDim / 2];  // cos, sin
  const int64_t r = blockIdx.x;
  const int lane = threadIdx.x & 15;
  const int half_warp = threadIdx.x >> 4;
  const int d = args.shape.head_dim;
  if (args.places.row_count != nullptr) {
    wait_for_previous_kernel();
    if (r >= *args.places.row_count) return;
  }
  // All but q, k and v is older than the previous kernel.
  const int position = args.places.positions[r];
  const int half = d / 2;
  for (int i = threadIdx.x; i < half && position >= 0; i += static_cast<int>(blockDim.x)) {
    angles[0][i] = args.cos[static_cast<int64_t>(position) * half + i];
    angles[1][i] = args.sin[static_cast<int64_t>(position) * half + i];
  }
  if (args.q_norm != nullptr && !args.whole_norm) {
    prefetch_l2(args.q_norm, d * 2);
    prefetch_l2(args.k_norm, d * 2);
  }
  const int64_t first_page = args.places.sequences[r] * args.places.max_pages;
  const int64_t page =
      position < 0 ? 0 : args.places.page_table[first_page + position / kPagePositions];
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (position < 0) return;
  __syncthreads();
  const int heads = args.shape.heads;
  const int kv_heads = args.shape.kv_heads;
  const float* row = args.qkv + r * args.shape.qkv_width();
  const bool whole = args.whole_norm && args.q_norm != nullptr;
  if (whole) {
    if (threadIdx.x < 32) {  // one half warp for queries, one for keys
      const float inverse = half_warp == 0
                                ? inverse_rms(row, heads * d, args.eps, lane)
                                : inverse_rms(row + heads * d, kv_heads * d, args.eps, lane);
      if (lane == 0) whole_inverse[half_warp] = inverse;
    }
    __syncthreads();
  }
  auto* kv = reinterpret_cast<uint16_t*>(args.kv) + page * args.shape.page_elements() +
             position % kPagePositions * d;
  auto* q = reinterpret_cast<uint16_t*>(args.q) + r * args.shape.q_width();
  const int half_warps = static_cast<int>(blockDim.x) / 16;
  for (int first = 0; first < heads + 2 * kv_heads; first += half_warps) {
    // Both halves of a warp go along, for the sums; the last may have no head.
    const int h = min(first + half_warp, heads + 2 * kv_heads - 1);
    const bool is_q = h < heads;
    const bool is_value = h >= heads + kv_heads;
    const float* x = row + h * d;
    const int of_kind = is_q ? h : (h - heads) % kv_heads;
    float inverse = 0.0F;
    if (args.q_norm != nullptr) {
      inverse = whole ? whole_inverse[is_q ? 0 : 1] : inverse_rms(x, d, args.eps, lane);
    }
    if (first + half_warp != h) continue;
    if (is_value) {
      uint16_t* value = kv + (of_kind * 2 + 1) * kPagePositions * d;
      for (int i = lane * 2; i < d; i += 32) {
        *reinterpret_cast<uint32_t*>(value + i) = round_bf16(x[i]) | round_bf16(x[i + 1]) << 16;
      }
      continue;
    }
    const auto* weight = reinterpret_cast<const uint16_t*>(is_q ? args.q_norm : args.k_norm);
    if (whole) weight += of_kind * d;
    rotate(x, d, weight, inverse, angles[0], angles[1], lane,
           is_q ? q + h * d : kv + of_kind * 2 * kPagePositions * d);
  }
}

}  // namespace

void launch_qkv_rows(const CudaContext& context, const QkvRows& args) {
  // All heads at once, where a block has room: a head waits for memory, not for its turn.
  const int heads = args.shape.heads + 2 * args.shape.kv_heads;
  const int threads = std::min((heads + 1) / 2 * 32, kMaxThreads);
  launch(context, "QKV rows", place_qkv, static_cast<int>(args.places.rows), threads, 0, args);
}

}  // namespace quads::kernels::cuda
