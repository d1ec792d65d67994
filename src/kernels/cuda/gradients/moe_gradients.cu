// The experts' gradients besides products: a block a row or a slot, a warp a row of the router.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/experts/decode.cuh"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route_softmax.cuh"
#include "kernels/cuda/experts/weight_format.h"
#include "kernels/cuda/gradients/gradient_launch.h"
#include "kernels/cuda/launch.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRouteWarps = 4;

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); }
__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b) {
  return round_bf16(low(a) + low(b)) | round_bf16(high(a) + high(b)) << 16;
}
/// Two values of an FP16 image in units of g, rounded to BF16.
__device__ __forceinline__ uint32_t round_fp16_pair(uint32_t pair, float g) {
  return round_bf16(__low2float(as_fp16_pair(pair)) * g) |
         round_bf16(__high2float(as_fp16_pair(pair)) * g) << 16;
}
__device__ __forceinline__ uint2 round_quad(float4 x) {
  return make_uint2(round_bf16(x.x) | round_bf16(x.y) << 16, round_bf16(x.z) | round_bf16(x.w)
                                                                                   << 16);
}

__global__ void __launch_bounds__(kThreads)
    read_image(const __grid_constant__ ImageValues args, int stages, int residual_stages) {
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const ImageRow place = args.image_rows[row];
  if (place.index < 0) return;
  auto* values = reinterpret_cast<uint4*>(args.values + row * args.k);
  for (int i = threadIdx.x; i < args.k / 8; i += kThreads) {
    const int block = i / 2;
    const int position = args.block_position == nullptr ? block : args.block_position[block];
    const int chunk = position * 2 + i % 2;
    uint4 value = *reinterpret_cast<const uint4*>(
        args.q1 + image_offset(place, stages, chunk / 16, chunk % 16));
    if (args.row_scales != nullptr) {
      const float g = args.row_scales[place.base + place.index];
      value = make_uint4(round_fp16_pair(value.x, g), round_fp16_pair(value.y, g),
                         round_fp16_pair(value.z, g), round_fp16_pair(value.w, g));
    } else if (position < args.residual_blocks) {
      const uint4 more = *reinterpret_cast<const uint4*>(
          args.q2 + image_offset(place, residual_stages, chunk / 16, chunk % 16));
      value = make_uint4(add_pairs(value.x, more.x), add_pairs(value.y, more.y),
                         add_pairs(value.z, more.z), add_pairs(value.w, more.w));
    }
    values[i] = value;
  }
}

__global__ void __launch_bounds__(kThreads)
    round_outputs(const __grid_constant__ ExpertOutputsBackward args) {
  wait_for_previous_kernel();
  const int64_t slot = blockIdx.x;
  const int64_t to = args.sorted_rows[slot];
  if (to < 0) return;
  const float weight = args.weights[slot];
  const auto* dy = reinterpret_cast<const float4*>(args.dy + slot / args.top_k * args.d);
  auto* plain = reinterpret_cast<uint2*>(args.dy_sorted + to * args.d);
  auto* weighted = reinterpret_cast<uint2*>(args.weighted + to * args.d);
  for (int64_t i = threadIdx.x; i < args.d / 4; i += kThreads) {
    const float4 x = dy[i];
    plain[i] = round_quad(x);
    weighted[i] = round_quad(make_float4(x.x * weight, x.y * weight, x.z * weight, x.w * weight));
  }
}

__global__ void __launch_bounds__(kThreads) silu_rows(const __grid_constant__ SiluBackward args) {
  wait_for_previous_kernel();
  const int64_t slot = blockIdx.x;
  const int64_t at = args.sorted_rows[slot];
  if (at < 0) {
    if (threadIdx.x == 0) args.dweights[slot] = 0.0F;
    return;
  }
  const float weight = args.weights[slot];
  const float* gate = args.gate_up + at * 2 * args.width;
  const float* up = gate + args.width;
  const float* dh = args.dh + at * args.width;
  if (threadIdx.x < 32) {
    const auto* h = reinterpret_cast<const uint16_t*>(args.h) + at * args.width;
    float sum = 0.0F;
#pragma unroll 4
    for (int64_t i = threadIdx.x & 15; i < args.width; i += 16) {
      sum = __fmaf_rn(dh[i], __uint_as_float(static_cast<uint32_t>(h[i]) << 16), sum);
    }
    sum = reduce_sum_16(sum);
    if (threadIdx.x == 0) args.dweights[slot] = sum;
  }
  auto* dgate = reinterpret_cast<uint16_t*>(args.dgate_up) + at * 2 * args.width;
  auto* dup = dgate + args.width;
  for (int64_t i = threadIdx.x; i < args.width; i += kThreads) {
    const float g = gate[i];
    const float grad = dh[i] * weight;
    const float t = exp_f32(__uint_as_float(__float_as_uint(g) | 0x80000000U));
    const float s = __fdiv_rn(g < 0.0F ? t : 1.0F, 1.0F + t);
    const float slope = s * __fmaf_rn(g, 1.0F - s, 1.0F);
    dgate[i] = static_cast<uint16_t>(round_bf16(grad * up[i] * slope));
    dup[i] = static_cast<uint16_t>(round_bf16(grad * (g * s)));
  }
}

__global__ void __launch_bounds__(kThreads) add_choices(const __grid_constant__ SumChoices args) {
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const int32_t* sorted_rows = args.sorted_rows + row * args.top_k;
  const auto* base = reinterpret_cast<const float4*>(args.base + row * args.d);
  auto* sums = reinterpret_cast<float4*>(args.sums + row * args.d);
  for (int64_t i = threadIdx.x; i < args.d / 4; i += kThreads) {
    float4 sum = args.base == nullptr ? make_float4(0.0F, 0.0F, 0.0F, 0.0F) : base[i];
    for (int s = 0; s < args.top_k; ++s) {
      const int64_t from = sorted_rows[s];
      if (from < 0) continue;
      const float4 part = reinterpret_cast<const float4*>(args.parts + from * args.d)[i];
      sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    sums[i] = sum;
  }
}

/// Order of operations as kernels/cpu/rows_router.inl.h.
template <int per_lane>
__global__ void __launch_bounds__(kRouteWarps * 32)
    route_rows_backward(const __grid_constant__ RouteBackward args) {
  wait_for_previous_kernel();
  const int lane = threadIdx.x & 31;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRouteWarps + (threadIdx.x >> 5);
  if (row >= args.rows) return;
  const float* logits = args.logits + row * args.ldl;
  const float lowest = __uint_as_float(0xFF800000U);
  float z[per_lane];
  float largest = lowest;
#pragma unroll
  for (int j = 0; j < per_lane; ++j) {
    const int expert = j * 32 + lane;
    z[j] = expert < args.experts ? logits[expert] : lowest;
    largest = z[j] > largest ? z[j] : largest;
  }
  largest = largest_of_warp(largest);
  const float sum = exponentials(args.experts, largest, z);

  int id = -1;  // of choice `lane`
  float p = 0.0F;
  float dw = 0.0F;
  if (lane < args.top_k) {
    id = args.ids[row * args.top_k + lane];
    dw = args.dweights[row * args.top_k + lane];
    p = __fdiv_rn(exp_f32(logits[id] - largest), sum);
  }
  float chosen = 0.0F;
  float mean = 0.0F;
  for (int s = 0; s < args.top_k; ++s) {
    const float p_s = __shfl_sync(~0U, p, s);
    chosen = chosen + p_s;
    mean = mean + __shfl_sync(~0U, dw, s) * p_s;
  }
  if (args.normalise) mean = __fdiv_rn(mean, chosen);
  const float others = args.normalise ? 0.0F : -mean;
  const float of_choice = __fdiv_rn(p, args.normalise ? chosen : 1.0F) * (dw - mean);
  float dz[per_lane];
#pragma unroll
  for (int j = 0; j < per_lane; ++j) dz[j] = __fdiv_rn(z[j], sum) * others;
  for (int s = 0; s < args.top_k; ++s) {
    const int id_s = __shfl_sync(~0U, id, s);
    const float value = __shfl_sync(~0U, of_choice, s);
#pragma unroll
    for (int j = 0; j < per_lane; ++j) {
      if (id_s == j * 32 + lane) dz[j] = value;
    }
  }
  auto* out = reinterpret_cast<uint16_t*>(args.dlogits) + row * args.ldd;
#pragma unroll
  for (int j = 0; j < per_lane; ++j) {
    const int expert = j * 32 + lane;
    if (expert < args.experts) out[expert] = static_cast<uint16_t>(round_bf16(dz[j]));
  }
  for (int64_t i = args.experts + lane; i < args.ldd; i += 32) {
    float gate = 0.0F;
    if (i == args.experts && args.shared_weights != nullptr) {
      const float weight = args.shared_weights[row];
      gate = args.shared_dweights[row] * weight * (1.0F - weight);
    }
    out[i] = static_cast<uint16_t>(round_bf16(gate));
  }
}

}  // namespace

void launch_image_values(const CudaContext& context, const ImageValues& args) {
  launch(context, "values of an image", read_image, static_cast<unsigned>(args.rows), kThreads, 0,
         args, stages_of(args.k), stages_of(int64_t{16} * args.residual_blocks));
}

void launch_expert_outputs_backward(const CudaContext& context, const ExpertOutputsBackward& args) {
  launch(context, "experts' outputs", round_outputs, static_cast<unsigned>(args.rows * args.top_k),
         kThreads, 0, args);
}

void launch_silu_backward(const CudaContext& context, const SiluBackward& args) {
  launch(context, "SiLU's backward", silu_rows, static_cast<unsigned>(args.slots), kThreads, 0,
         args);
}

void launch_sum_choices(const CudaContext& context, const SumChoices& args) {
  launch(context, "sums of choices", add_choices, static_cast<unsigned>(args.rows), kThreads, 0,
         args);
}

void launch_route_backward(const CudaContext& context, const RouteBackward& args) {
  const auto blocks = static_cast<unsigned>((args.rows + kRouteWarps - 1) / kRouteWarps);
  const auto run = [&](auto* kernel) {
    launch(context, "routing's backward", kernel, blocks, kRouteWarps * 32, 0, args);
  };
  if (args.experts <= 128) return run(route_rows_backward<4>);
  run(route_rows_backward<kMaxExperts / 32>);
}

}  // namespace quads::kernels::cuda
