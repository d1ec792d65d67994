// A thread a block of 16.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize/quantize_block.cuh"
#include "kernels/cuda/quantize/quantize_codes.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// numerics' e2m1_encode_scaled: |x| against the boundaries times `scale`; strict comparisons send a
// tie down, the others up: to the even code.
__device__ __forceinline__ uint32_t encode_scaled(float x, float scale) {
  const float m = fabsf(x);
  const uint32_t code =
      static_cast<uint32_t>(m > 0.25F * scale) + static_cast<uint32_t>(m >= 0.75F * scale) +
      static_cast<uint32_t>(m > 1.25F * scale) + static_cast<uint32_t>(m >= 1.75F * scale) +
      static_cast<uint32_t>(m > 2.5F * scale) + static_cast<uint32_t>(m >= 3.5F * scale) +
      static_cast<uint32_t>(m > 5.0F * scale);
  return code | __float_as_uint(x) >> 31 << 3;
}

__device__ __forceinline__ float decode_e2m1(uint32_t code) {
  const uint32_t m = code & 7U;
  const float magnitude = m < 2 ? 0.5F * static_cast<float>(m)
                                : __uint_as_float((m >> 1) + 126U << 23 | (m & 1U) << 22);
  return __uint_as_float(__float_as_uint(magnitude) | (code & 8U) << 28);
}

__device__ __forceinline__ float decode_e4m3(uint32_t code) {
  return code < 8 ? static_cast<float>(code) * 0x1p-9F
                  : __uint_as_float((code << 20) + (120U << 23));
}

template <bool bf16>
__device__ __forceinline__ void load(const void* x, int64_t block, float values[16]) {
  if constexpr (bf16) {
    uint32_t words[8];
    load_block(static_cast<const uint16_t*>(x) + block * 16, words);
    unpack_block(words, values);
  } else {
    const auto* fours = static_cast<const float4*>(x) + block * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i * 4] = fours[i].x;
      values[i * 4 + 1] = fours[i].y;
      values[i * 4 + 2] = fours[i].z;
      values[i * 4 + 3] = fours[i].w;
    }
  }
}

template <bool bf16>
__global__ void __launch_bounds__(kThreads) quantize(QuantizeCodes args, bool power_of_two) {
  wait_for_previous_kernel();
  const int64_t blocks = args.k / 16;
  for (int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x; block < args.rows * blocks;
       block += int64_t{gridDim.x} * kThreads) {
    float values[16];
    load<bf16>(args.x, block, values);
    const float e4m3 =
        round_e4m3(fminf(__fdiv_rn(amax_of(values), 6.0F * args.global_scale), 448.0F));
    args.block_scales[block] = static_cast<uint8_t>(e4m3_code(e4m3));
    const float scale = e4m3 * args.global_scale;
    uint32_t words[2] = {0, 0};
    bool fits = true;
    if (e4m3 != 0.0F) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const uint32_t code = power_of_two ? encode_scaled(values[i], scale)
                                           : encode_scaled(__fdiv_rn(values[i], scale), 1.0F);
        words[i / 8] |= code << (i % 8 * 4);
        // From this value on, rounding to BF16 gives an infinity.
        fits = fits && fabsf(decode_e2m1(code) * scale) < __uint_as_float(0x7F7F8000U);
      }
    }
    reinterpret_cast<uint2*>(args.codes)[block] = make_uint2(words[0], words[1]);
    if (!fits) atomicMin(args.first_bad_row, static_cast<int32_t>(block / blocks));
  }
  let_next_kernel_start();
}

__global__ void __launch_bounds__(kThreads) dequantize(DequantizeCodes args) {
  wait_for_previous_kernel();
  const int64_t blocks = args.k / 16;
  const float g = *args.global_scale;
  for (int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x; block < args.rows * blocks;
       block += int64_t{gridDim.x} * kThreads) {
    const uint32_t sf = args.block_scales[block];
    if (sf > 0x7EU) atomicMin(args.first_bad_row, static_cast<int32_t>(block / blocks));
    const float scale = decode_e4m3(sf & 0x7FU) * g;
    const uint2 words = reinterpret_cast<const uint2*>(args.codes)[block];
    auto* out = reinterpret_cast<float4*>(args.values) + block * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t four = (i < 2 ? words.x : words.y) >> (i % 2 * 16);
      out[i] =
          make_float4(decode_e2m1(four & 15U) * scale, decode_e2m1(four >> 4 & 15U) * scale,
                      decode_e2m1(four >> 8 & 15U) * scale, decode_e2m1(four >> 12 & 15U) * scale);
    }
  }
  let_next_kernel_start();
}

int grid(const CudaContext& context, int64_t blocks) {
  const int64_t wanted = (blocks + kThreads - 1) / kThreads;
  const int64_t fill = int64_t{context.multiprocessors} * 16;
  return static_cast<int>(wanted < fill ? wanted : fill);
}

bool is_power_of_two(float x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5F && x >= 0x1p-126F;
}

}  // namespace

void launch_quantize_codes(const CudaContext& context, const QuantizeCodes& args) {
  launch(context, "NVFP4 codes", args.x_is_bf16 ? quantize<true> : quantize<false>,
         grid(context, args.rows * args.k / 16), kThreads, 0, args,
         is_power_of_two(args.global_scale));
}

void launch_dequantize_codes(const CudaContext& context, const DequantizeCodes& args) {
  launch(context, "values of NVFP4 codes", dequantize, grid(context, args.rows * args.k / 16),
         kThreads, 0, args);
}

}  // namespace quads::kernels::cuda
