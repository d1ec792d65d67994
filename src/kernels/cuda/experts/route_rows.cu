// The router: a warp a row.
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route_launch.h"
#include "kernels/cuda/experts/route_softmax.cuh"
#include "kernels/cuda/launch.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kWarps = 4;  // rows of a block

/// Rising with the value; zeros of both signs alike, NaN below everything else, never 0.
__device__ __forceinline__ uint32_t order_key(float z) {
  if (z != z) return 1;
  const uint32_t u = __float_as_uint(z == 0.0F ? 0.0F : z);
  return u >> 31 != 0 ? ~u : u | 0x80000000U;
}

template <int per_lane>
__global__ void __launch_bounds__(kWarps * 32) route(const __grid_constant__ RouteRows args) {
  const int lane = threadIdx.x & 31;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (row >= args.rows) return;
  const float* logits = args.logits + row * args.ldl;
  // Lane l has experts l, l + 32, ...
  float z[per_lane];
  uint32_t keys[per_lane];  // 0: not there, or taken
  const float lowest = __uint_as_float(0xFF800000U);
  float largest = lowest;
#pragma unroll
  for (int j = 0; j < per_lane; ++j) {
    const int expert = j * 32 + lane;
    const bool there = expert < args.experts;
    z[j] = there ? logits[expert] : lowest;
    keys[j] = there ? order_key(z[j]) : 0;
    largest = z[j] > largest ? z[j] : largest;  // passes over NaN
  }
  largest = largest_of_warp(largest);
  const float sum = exponentials(args.experts, largest, z);

  int id = 0;  // of choice `lane`
  for (int s = 0; s < args.top_k; ++s) {
    int chosen;
    if (args.forced != nullptr) {
      chosen = args.forced[row * args.top_k + s];
    } else {
      uint32_t best = 0;
#pragma unroll
      for (int j = 0; j < per_lane; ++j) best = max(best, keys[j]);
      best = __reduce_max_sync(~0U, best);
      uint32_t first = ~0U;
#pragma unroll
      for (int j = per_lane - 1; j >= 0; --j) {
        if (keys[j] == best) first = j * 32 + lane;
      }
      first = __reduce_min_sync(~0U, first);
#pragma unroll
      for (int j = 0; j < per_lane; ++j) {
        if (first == static_cast<uint32_t>(j * 32 + lane)) keys[j] = 0;
      }
      chosen = static_cast<int>(first);
    }
    if (lane == s) id = chosen;
  }
  float weight = 0.0F;
  if (lane < args.top_k) weight = __fdiv_rn(exp_f32(logits[id] - largest), sum);
  float total = 0.0F;
  for (int s = 0; s < args.top_k; ++s) total = total + __shfl_sync(~0U, weight, s);
  if (args.normalise) weight = __fdiv_rn(weight, total);
  if (args.shared_weights != nullptr && lane == 0) {
    args.shared_weights[row] = sigmoid(logits[args.experts]);
  }
  if (lane >= args.top_k) return;
  args.ids[row * args.top_k + lane] = id;
  args.weights[row * args.top_k + lane] = weight;
}

}  // namespace

void launch_route_rows(const CudaContext& context, const RouteRows& args) {
  const int blocks = static_cast<int>((args.rows + kWarps - 1) / kWarps);
  const auto run = [&](auto* kernel) {
    launch(context, "routing", kernel, blocks, kWarps * 32, 0, args);
  };
  if (args.experts <= 128) return run(route<4>);
  run(route<kMaxExperts / 32>);
}

}  // namespace quads::kernels::cuda
