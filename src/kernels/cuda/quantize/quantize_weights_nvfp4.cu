// Weights to NVFP4 fragments: a block of threads a tile of 64 rows x 128 k.
#include "kernels/cuda/experts/fragment_codes_fp16.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "kernels/cuda/quantize/quantize_block.cuh"
#include "kernels/cuda/quantize/quantize_in_order.cuh"
#include "kernels/cuda/quantize/quantize_weights_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kBlocksOfStage = kStageK / 16;
constexpr uint32_t kBf16Infinity = 0x7F80;

// gridDim.y matrices.
__global__ void __launch_bounds__(kQuantizeThreads)
    largest_magnitudes(const Bf16* w, int64_t stride, int64_t size, uint32_t* amax_bits) {
  wait_for_previous_kernel();
  const auto* words = reinterpret_cast<const uint4*>(w + blockIdx.y * stride);
  const int64_t share = (size / 8 + gridDim.x - 1) / gridDim.x;
  const int64_t begin = blockIdx.x * share;
  raise_largest(largest_of_thread(words, begin, min(begin + share, size / 8)),
                amax_bits + blockIdx.y);
  let_next_kernel_start();
}

// x / scale on the grid, as the bits of its magnitude * 2^-126, which is subnormal where e2m1 is:
// the code's three bits are the last exponent bits and the first of the mantissa. As round_e2m1,
// with the factor in the last addition.
__device__ __forceinline__ uint32_t e2m1_bits(float x, float reciprocal) {
  const float y = __uint_as_float(__float_as_uint(__fmul_rn(fabsf(x), reciprocal)) & ~0xFFU);
  const float power = fmaxf(__uint_as_float(__float_as_uint(y) & 0x7F800000U), 1.0F);
  const float sum = __fmaf_rn(power, 0x1.8p22F, y);
  const float rounded = __fmaf_rn(sum, 0x1p-126F, power * -0x1.8p-104F);
  return __float_as_uint(fminf(rounded, 0x1.8p-124F));
}

// x / 6 to the nearest: the rounded product, corrected by what it misses. x is 0 or far from
// subnormal, or so small that its block's scale is 0 whatever it rounds to.
__device__ __forceinline__ float divide_by_6(float x) {
  constexpr float kSixth = 1.0F / 6.0F;
  const float quotient = __fmul_rn(x, kSixth);
  return __fmaf_rn(__fmaf_rn(-6.0F, quotient, x), kSixth, quotient);
}

// 1 / scale to the nearest, for a scale of four significand bits from 2^-125 to below 2^126: one
// step of Newton's squares the estimate's error, and no such reciprocal lies that near the middle
// of two values.
__device__ __forceinline__ float reciprocal_of_scale(float scale) {
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(scale));
  return __fmaf_rn(estimate, __fmaf_rn(-scale, estimate, 1.0F), estimate);
}

// Two neighbours along K, BF16 x of which the first is the low half, as a masked pair
// (fragment_codes.h); `sign` masks the sign's bit.
template <bool fp16>
__device__ __forceinline__ uint32_t quantize_pair(uint32_t x, float reciprocal, uint32_t sign) {
  const uint32_t first = x << 16;
  const uint32_t second = x & 0xFFFF0000U;
  uint32_t low = e2m1_bits(__uint_as_float(first), reciprocal);
  uint32_t high = e2m1_bits(__uint_as_float(second), reciprocal);
  if (fp16) {
    low <<= 3;
    high <<= 3;
  }
  return __byte_perm(low | (first & sign), high | (second & sign), 0x7632);
}

// The block at each position along K, from the position of each block; -1 behind the end, up to a
// whole stage.
__device__ __forceinline__ void invert_positions(const int32_t* position_of, int blocks, int stages,
                                                 int32_t* block_at) {
  const int first = static_cast<int>(threadIdx.x);
  for (int i = first; i < stages * kBlocksOfStage; i += kQuantizeThreads) {
    block_at[i] = position_of == nullptr && i < blocks ? i : -1;
  }
  __syncthreads();
  if (position_of == nullptr) return;
  for (int i = first; i < blocks; i += kQuantizeThreads) block_at[position_of[i]] = i;
}

// Tile (rows, stage) of a matrix: a warp quantises 16 rows x 64 channels, which are 16 bytes of
// codes for each lane. A lane has two rows, as an MMA's fragment has, and of each of four blocks
// the channels of two pairs; four lanes have a block.
template <bool fp16>
__device__ __forceinline__ void pack_tile(const QuantizeWeights& args, const int32_t* block_at,
                                          int stages, int matrix, int tile, uint32_t amax) {
  constexpr int kRows = 2, kBlocks = 4;
  const float g = power_of_two_scale(min(amax, kBf16Infinity - 1), kNvfp4MaxBits);
  const int stage = tile % stages;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slice = warp / 2, half = warp % 2;
  const int row = lane / 4, part = lane % 4;
  const int64_t first_row = int64_t{tile / stages} * kTileRows + slice * 16 + row;
  const uint32_t* rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t place = first_row + r * 8;
    const int64_t from = args.paired ? paired_row(place, args.n) : place;
    rows[r] =
        reinterpret_cast<const uint32_t*>(args.w + matrix * args.stride + from * args.k) + part;
  }
  const int4 four =
      *reinterpret_cast<const int4*>(block_at + stage * kBlocksOfStage + half * kBlocks);
  const int blocks[kBlocks] = {four.x, four.y, four.z, four.w};

  uint32_t x[kRows][kBlocks][2];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t keep = blocks[b] < 0 ? 0U : ~0U;
    const uint32_t offset = max(blocks[b], 0) * 8U;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) x[r][b][i] = rows[r][offset + i * 4] & keep;
    }
  }
  uint32_t largest[kBlocks];  // row 0 in the low half
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    uint32_t of_row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      of_row[r] = __vmaxu2(x[r][b][0] & 0x7FFF7FFFU, x[r][b][1] & 0x7FFF7FFFU);
      of_row[r] = __vmaxu2(of_row[r], __funnelshift_l(of_row[r], of_row[r], 16));
    }
    largest[b] = __byte_perm(of_row[0], of_row[1], 0x5410);
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    largest[b] = __vmaxu2(largest[b], __shfl_xor_sync(~0U, largest[b], 1));
    largest[b] = __vmaxu2(largest[b], __shfl_xor_sync(~0U, largest[b], 2));
  }

  // A lane makes the scales of one of its rows' blocks, and has those of others from its
  // neighbours.
  const uint32_t own =
      part < 2 ? (part == 0 ? largest[0] : largest[1]) : (part == 2 ? largest[2] : largest[3]);
  const float inverse_g = __uint_as_float((254U << 23) - __float_as_uint(g));  // a power of two
  float reciprocals[kRows];
  uint32_t scales[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint32_t bits = r == 0 ? own << 16 : own & 0xFFFF0000U;
    const float e4m3 = round_e4m3(divide_by_6(__uint_as_float(bits) * inverse_g));
    const bool zero = e4m3 == 0.0F;
    scales[r] = zero ? 0U : __float_as_uint(e4m3 * 0x1p118F) >> 20 & 0xFFU;
    reciprocals[r] = zero ? 0.0F : reciprocal_of_scale(e4m3 * g);
  }
  const uint32_t both = scales[0] | scales[1] << 16;
  const uint32_t next = __shfl_down_sync(~0U, both, 1);

  const int64_t tiles = args.n / kTileRows * stages;
  uint8_t* out = args.fragments + (matrix * tiles + tile) * kTileBytes + slice * kSliceBytes;
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t pairs[8];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float reciprocal = __shfl_sync(~0U, reciprocals[r], lane / 4 * 4 + i * 2 + b);
        const uint32_t sign = reciprocal == 0.0F ? 0U : 0x80000000U;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          pairs[b * 4 + j * 2 + r] = quantize_pair<fp16>(x[r][i * 2 + b][j], reciprocal, sign);
        }
      }
    }
    const CodeWords two = fp16 ? CodeWords{encode_pairs_fp16(pairs), encode_pairs_fp16(pairs + 4)}
                               : encode_pairs(pairs);
    words[2 * i] = two.first;
    words[2 * i + 1] = two.second;
  }
  __stcs(reinterpret_cast<uint4*>(out + half * 512 + lane * 16),
         make_uint4(words[0], words[1], words[2], words[3]));
  if (part % 2 == 0) {
    const uint32_t word = scale_word(both & 0xFFU, both >> 16, next & 0xFFU, next >> 16);
    *reinterpret_cast<uint32_t*>(out + 1024 + row * 16 + (half * 2 + part / 2) * 4) =
        fp16 ? scale_word_fp16(word) : word;
  }
  if (tile == 0 && threadIdx.x == 0) args.global_scales[matrix] = g;
}

template <bool fp16>
__global__ void __launch_bounds__(kQuantizeThreads, 5)
    pack_nvfp4(QuantizeWeights args, QuantizeOrder order, int stages) {
  extern __shared__ __align__(16) int32_t block_at[];
  invert_positions(args.block_position, static_cast<int>(args.k / 16), stages, block_at);
  wait_for_previous_kernel();
  quantize_in_order(
      args, order, [&](int matrix, int part) { return largest_of_part(args, matrix, part); },
      [&](int matrix, int tile, uint32_t amax) {
        pack_tile<fp16>(args, block_at, stages, matrix, tile, amax);
      });
  let_next_kernel_start();
}

}  // namespace

void launch_weight_amax(const CudaContext& context, const Bf16* w, int matrices, int64_t stride,
                        int64_t size, uint32_t* amax_bits) {
  // Enough blocks to fill the device, and no more than have 16 loads a thread.
  const int64_t wanted = (size / 8 + kQuantizeThreads * 16 - 1) / (kQuantizeThreads * 16);
  const int64_t fill = (int64_t{context.multiprocessors} * 8 + matrices - 1) / matrices;
  const auto x = static_cast<int>(wanted < fill ? wanted : fill);
  launch(context, "largest_magnitudes", largest_magnitudes, dim3(x, matrices), kQuantizeThreads, 0,
         w, stride, size, amax_bits);
}

void launch_pack_nvfp4(const CudaContext& context, const QuantizeWeights& args) {
  const int stages = stages_of(args.k);
  const auto tiles = static_cast<int>(args.n / kTileRows) * stages;
  const QuantizeOrder order(context, args.matrices, parts_of(args), tiles);
  const bool fp16 = args.format == WeightFormat::kNvfp4Fp16;
  launch(context, "pack_nvfp4", fp16 ? pack_nvfp4<true> : pack_nvfp4<false>,
         context.multiprocessors * kQuantizeBlocks, kQuantizeThreads,
         stages * kBlocksOfStage * static_cast<int>(sizeof(int32_t)), args, order, stages);
}

}  // namespace quads::kernels::cuda
