// Weights to NVFP4 fragments: amax, global scale, then a block of threads a tile of 64 rows x 128
// k.
#include "kernels/cuda/fragment_codes_fp16.h"
#include "kernels/cuda/fragment_weights.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/paired_rows.h"
#include "kernels/cuda/quantize_block.cuh"
#include "kernels/cuda/quantize_weights_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksOfStage = kStageK / 16;
constexpr uint32_t kBf16Infinity = 0x7F80;

__global__ void clear_amax(int matrices, uint32_t* amax_bits) {
  wait_for_previous_kernel();
  if (threadIdx.x < matrices) amax_bits[threadIdx.x] = 0;
  let_next_kernel_start();
}

// gridDim.y matrices; the maximum of unsigned integers is the same in any order.
__global__ void __launch_bounds__(kThreads)
    largest_magnitudes(const uint16_t* w, int64_t stride, int64_t size, uint32_t* amax_bits) {
  wait_for_previous_kernel();
  const auto* words = reinterpret_cast<const uint4*>(w + blockIdx.y * stride);
  uint32_t largest = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size / 8;
       i += int64_t{gridDim.x} * kThreads) {
    const uint4 four = words[i];
    largest = __vmaxu2(largest, four.x & 0x7FFF7FFFU);
    largest = __vmaxu2(largest, four.y & 0x7FFF7FFFU);
    largest = __vmaxu2(largest, four.z & 0x7FFF7FFFU);
    largest = __vmaxu2(largest, four.w & 0x7FFF7FFFU);
  }
  const uint32_t of_warp = __reduce_max_sync(~0U, max(largest & 0xFFFFU, largest >> 16));
  if (threadIdx.x % 32 == 0 && of_warp > 0) atomicMax(&amax_bits[blockIdx.y], of_warp);
  let_next_kernel_start();
}

// The code of x: exponent and mantissa of its magnitude are the top bits of an FP32's, from .5 up.
__device__ __forceinline__ uint32_t e2m1_code(float x, float reciprocal) {
  const uint32_t top = __float_as_uint(round_e2m1(x, reciprocal)) >> 22;  // 252: .5, 254: 1
  const uint32_t magnitude = top < 252 ? 0U : top == 252 ? 1U : top - 252;
  return magnitude | __float_as_uint(x) >> 31 << 3;
}

// A block of 16 to its codes, two a byte, and its scale as fragments have it.
__device__ __forceinline__ uint2 quantize_codes(const uint16_t* x, float g, float inverse_g,
                                                uint32_t* scale) {
  const uint4 halves[2] = {reinterpret_cast<const uint4*>(x)[0],
                           reinterpret_cast<const uint4*>(x)[1]};
  const uint32_t words[8] = {halves[0].x, halves[0].y, halves[0].z, halves[0].w,
                             halves[1].x, halves[1].y, halves[1].z, halves[1].w};
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = __vmaxu2(largest, words[i] & 0x7FFF7FFFU);
  const uint32_t amax = max(largest & 0xFFFFU, largest >> 16);
  const float e4m3 = e4m3_scale(__uint_as_float(amax << 16), inverse_g);
  *scale = e4m3 == 0.0F ? 0U : __float_as_uint(e4m3 * 0x1p118F) >> 20 & 0xFFU;
  const float reciprocal = __fdiv_rn(1.0F, e4m3 * g);
  uint32_t codes[2] = {0, 0};
  if (e4m3 != 0.0F) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t low = e2m1_code(__uint_as_float(words[i] << 16), reciprocal);
      const uint32_t high = e2m1_code(__uint_as_float(words[i] & 0xFFFF0000U), reciprocal);
      codes[i / 4] |= (low | high << 4) << (i % 4 * 8);
    }
  }
  return make_uint2(codes[0], codes[1]);
}

template <bool fp16>
__global__ void __launch_bounds__(kThreads)
    pack_nvfp4(QuantizeWeights args, int tiles_of_matrix, int stages) {
  __shared__ int block_at[kBlocksOfStage];  // -1: behind the end of K
  __shared__ uint2 codes[kTileRows][kBlocksOfStage];
  __shared__ uint32_t scales[kTileRows][kBlocksOfStage];
  const int tile = static_cast<int>(blockIdx.x) / stages;
  const int stage = static_cast<int>(blockIdx.x) % stages;
  const int matrix = tile / tiles_of_matrix;
  const int64_t first_row = static_cast<int64_t>(tile % tiles_of_matrix) * kTileRows;
  const auto blocks = static_cast<int>(args.k / 16);
  const int thread = static_cast<int>(threadIdx.x);

  if (thread < kBlocksOfStage) {
    const int position = stage * kBlocksOfStage + thread;
    block_at[thread] = args.block_position == nullptr && position < blocks ? position : -1;
  }
  __syncthreads();
  if (args.block_position != nullptr) {
    for (int i = thread; i < blocks; i += kThreads) {
      const int position = args.block_position[i] - stage * kBlocksOfStage;
      if (position >= 0 && position < kBlocksOfStage) block_at[position] = i;
    }
    __syncthreads();
  }
  wait_for_previous_kernel();

  const uint32_t amax = args.amax_bits[matrix];
  const float g = power_of_two_scale(min(amax, kBf16Infinity - 1), kNvfp4MaxBits);
  const float inverse_g = __fdiv_rn(1.0F, g);
  const auto* w = reinterpret_cast<const uint16_t*>(args.w) + matrix * args.stride;
  const int row = thread / 4;
  const int64_t from = args.paired ? paired_row(first_row + row, args.n) : first_row + row;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int position = thread % 4 * 2 + j;
    const int block = block_at[position];
    uint2 packed = make_uint2(0, 0);
    uint32_t scale = 0;
    if (block >= 0) {
      packed = quantize_codes(w + from * args.k + block * 16, g, inverse_g, &scale);
    }
    codes[row][position] = packed;
    scales[row][position] = scale;
  }
  __syncthreads();

  // A thread has 16 bytes of codes: two k32 of a slice for one lane of a warp.
  uint8_t* out = args.fragments + static_cast<int64_t>(blockIdx.x) * kTileBytes;
  const int slice = thread / 64;
  const int half = thread / 32 % 2;
  const int lane = thread % 32;
  const auto byte_of = [&](int r, int position, int pair) -> uint32_t {
    return reinterpret_cast<const uint8_t*>(&codes[r][position])[pair];
  };
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t pairs[8];
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const int r = slice * 16 + (lane >> 2) + (p & 1) * 8;
      const uint32_t byte = byte_of(r, half * 4 + i * 2 + p / 4, (lane & 3) + (p >> 1 & 1) * 4);
      pairs[p] =
          fp16 ? masked_pair_fp16(byte & 0xFU, byte >> 4) : masked_pair(byte & 0xFU, byte >> 4);
    }
    const CodeWords two = fp16 ? CodeWords{encode_pairs_fp16(pairs), encode_pairs_fp16(pairs + 4)}
                               : encode_pairs(pairs);
    words[2 * i] = two.first;
    words[2 * i + 1] = two.second;
  }
  *reinterpret_cast<uint4*>(out + slice * kSliceBytes + half * 512 + lane * 16) =
      make_uint4(words[0], words[1], words[2], words[3]);
  if (thread < 4 * 8 * 4) {
    const int k32 = thread % 4;
    const int g_row = thread / 4 % 8;
    const int of_slice = thread / 32;
    const uint32_t(*at)[kBlocksOfStage] = &scales[of_slice * 16 + g_row];
    const uint32_t word =
        scale_word(at[0][k32 * 2], at[8][k32 * 2], at[0][k32 * 2 + 1], at[8][k32 * 2 + 1]);
    *reinterpret_cast<uint32_t*>(out + of_slice * kSliceBytes + 1024 + g_row * 16 + k32 * 4) =
        fp16 ? scale_word_fp16(word) : word;
  }
  if (stage == 0 && tile % tiles_of_matrix == 0 && thread == 0) args.global_scales[matrix] = g;
  let_next_kernel_start();
}

}  // namespace

void launch_weight_amax(const CudaContext& context, const Bf16* w, int matrices, int64_t stride,
                        int64_t size, uint32_t* amax_bits) {
  launch(context, "clear_amax", clear_amax, 1, kMaxExperts, 0, matrices, amax_bits);
  // Enough blocks to fill the device, and no more than have 16 loads a thread.
  const int64_t wanted = (size / 8 + kThreads * 16 - 1) / (kThreads * 16);
  const int64_t fill = (int64_t{context.multiprocessors} * 8 + matrices - 1) / matrices;
  const auto x = static_cast<int>(wanted < fill ? wanted : fill);
  launch(context, "largest_magnitudes", largest_magnitudes, dim3(x, matrices), kThreads, 0,
         reinterpret_cast<const uint16_t*>(w), stride, size, amax_bits);
}

void launch_pack_nvfp4(const CudaContext& context, const QuantizeWeights& args) {
  const auto tiles = static_cast<int>(args.n / kTileRows);
  const int stages = stages_of(args.k);
  const bool fp16 = args.format == WeightFormat::kNvfp4Fp16;
  launch(context, "pack_nvfp4", fp16 ? pack_nvfp4<true> : pack_nvfp4<false>,
         args.matrices * tiles * stages, kThreads, 0, args, tiles, stages);
}

}  // namespace quads::kernels::cuda
