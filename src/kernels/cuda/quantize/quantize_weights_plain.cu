// Weights to FP8 and BF16 fragments: a block of threads a tile of 64 rows x 128 k, from memory to
// fragments without a detour. FP8's scales are made where its blocks are searched, and lie in their
// slices before the tile is quantised.
#include <cuda_fp8.h>

#include "kernels/cuda/experts/fragment_plain.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "kernels/cuda/quantize/quantize_block.cuh"
#include "kernels/cuda/quantize/quantize_in_order.cuh"
#include "kernels/cuda/quantize/quantize_weights_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kSquare = 128;  // FP8's blocks, rows and k
static_assert(kSquare == kStageK);
template <WeightFormat format>
constexpr int kSliceBytesOf = slice_bytes(format);

// The codes of rows g and g + 8 in one word of a fragment: of two pairs of BF16, over the scales.
__device__ __forceinline__ uint32_t e4m3_word(uint32_t pair, uint32_t pair_8, float inverse,
                                              float inverse_8) {
  const auto codes = [&](uint32_t value, uint32_t value_8) -> uint32_t {
    const float2 both =
        make_float2(__uint_as_float(value_8) * inverse_8, __uint_as_float(value) * inverse);
    return __nv_cvt_float2_to_fp8x2(both, __NV_SATFINITE, __NV_E4M3);
  };
  return codes(pair << 16, pair_8 << 16) | codes(pair & 0xFFFF0000U, pair_8 & 0xFFFF0000U) << 16;
}

// 16 rows of a stage; `slice` counts the rows of a matrix.
template <WeightFormat format>
__device__ __forceinline__ uint8_t* slice_at(const QuantizeWeights& args, int stages, int matrix,
                                             int64_t slice, int stage) {
  const int64_t tile = matrix * (args.n / kTileRows) + slice / kTileSlices;
  return args.fragments +
         ((tile * stages + stage) * kTileSlices + slice % kTileSlices) * kSliceBytesOf<format>;
}

// Searches a block of FP8 and writes its scale to the slices that its rows go to.
__device__ __forceinline__ uint32_t search_square(const QuantizeWeights& args, int stages,
                                                  int matrix, int index) {
  __shared__ uint32_t amax;
  const int stage = index % stages;
  const int64_t first_row = int64_t{index / stages} * kSquare;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) amax = 0;
  __syncthreads();
  const auto* w = reinterpret_cast<const uint16_t*>(args.w) + matrix * args.stride;
  uint32_t largest = 0;
#pragma unroll
  for (int i = thread; i < kSquare * kSquare / 8; i += kQuantizeThreads) {
    const int64_t row = first_row + i / (kSquare / 8);
    const int64_t channel = stage * kSquare + i % (kSquare / 8) * 8;
    if (row >= args.n || channel >= args.k) continue;
    largest = larger_of(largest, *reinterpret_cast<const uint4*>(w + row * args.k + channel));
  }
  raise_largest(largest, &amax);
  __syncthreads();
  const int64_t row = first_row + thread * 8;  // and the seven behind it
  if (thread < kSquare / 8 && row < args.n) {
    const float scale = power_of_two_scale(min(amax, kE4m3MaxBits + (115U << 7)), kE4m3MaxBits);
    const uint32_t half = __float_as_uint(scale * kFp8ScaleFactor) >> 16;
    const uint32_t pair = half | half << 16;
    const int64_t place = args.paired ? paired_place(row, args.n) : row;
    auto* scales = reinterpret_cast<uint32_t*>(
        slice_at<WeightFormat::kFp8>(args, stages, matrix, place / 16, stage) + 16 * kStageK);
    scales[place / 8 % 2] = scales[2 + place / 8 % 2] = pair;
  }
  __syncwarp();  // lane 0 sees them
  return largest;
}

// Tile (rows, stage) of a matrix: a warp takes 16 rows x 64 channels, a lane of each of four blocks
// of 16 what an MMA's fragment has: two rows, the channels of two pairs.
template <WeightFormat format>
__device__ __forceinline__ void pack_tile(const QuantizeWeights& args, int stages, int matrix,
                                          int index) {
  constexpr int kBlocks = 4;
  const int stage = index % stages;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int half = warp % 2;
  const int64_t slice = int64_t{index / stages} * kTileSlices + warp / 2;
  const int64_t first_channel = stage * kStageK + half * 64;
  const uint32_t* rows[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t place = slice * 16 + lane / 4 + r * 8;
    const int64_t row = args.paired ? paired_row(place, args.n) : place;
    rows[r] = reinterpret_cast<const uint32_t*>(args.w + matrix * args.stride + row * args.k +
                                                first_channel) +
              lane % 4;
  }
  uint32_t x[kBlocks][4];  // the fragments' registers
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const bool there = first_channel + b * 16 < args.k;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[b][i] = there ? rows[i % 2][b * 8 + i / 2 * 4] : 0U;
  }
  uint8_t* to = slice_at<format>(args, stages, matrix, slice, stage);
  if constexpr (format == WeightFormat::kFp8) {
    const uint2 scales = *reinterpret_cast<const uint2*>(to + 16 * kStageK);
    const float inverse = __fdiv_rn(kFp8ScaleFactor, __uint_as_float(scales.x & 0xFFFF0000U));
    const float inverse_8 = __fdiv_rn(kFp8ScaleFactor, __uint_as_float(scales.y & 0xFFFF0000U));
#pragma unroll
    for (int pair = 0; pair < kBlocks / 2; ++pair) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t* of_block = x[pair * 2 + i / 2] + i % 2 * 2;
        words[i] = e4m3_word(of_block[0], of_block[1], inverse, inverse_8);
      }
      __stcs(reinterpret_cast<uint4*>(to + (half * 2 + pair) * 512 + lane * 16),
             make_uint4(words[0], words[1], words[2], words[3]));
    }
  } else {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      __stcs(reinterpret_cast<uint4*>(to + (half * 4 + b) * 512 + lane * 16),
             make_uint4(x[b][0], x[b][1], x[b][2], x[b][3]));
    }
  }
  if (index == 0 && threadIdx.x == 0) args.global_scales[matrix] = 1.0F;
}

template <WeightFormat format>
__global__ void __launch_bounds__(kQuantizeThreads, 5)
    pack_plain(QuantizeWeights args, QuantizeOrder order, int stages) {
  wait_for_previous_kernel();
  quantize_in_order(
      args, order,
      [&](int matrix, int part) {
        if constexpr (format == WeightFormat::kFp8) {
          return search_square(args, stages, matrix, part);
        } else {
          return largest_of_part(args, matrix, part);
        }
      },
      [&](int matrix, int tile, uint32_t) { pack_tile<format>(args, stages, matrix, tile); });
  let_next_kernel_start();
}

}  // namespace

void launch_pack_plain(const CudaContext& context, const QuantizeWeights& args) {
  const bool fp8 = args.format == WeightFormat::kFp8;
  const int stages = stages_of(args.k);
  const auto squares = static_cast<int>((args.n + kSquare - 1) / kSquare) * stages;
  const auto tiles = static_cast<int>(args.n / kTileRows) * stages;
  const QuantizeOrder order(context, args.matrices, fp8 ? squares : parts_of(args), tiles);
  launch(context, "pack_plain",
         fp8 ? pack_plain<WeightFormat::kFp8> : pack_plain<WeightFormat::kBf16>,
         context.multiprocessors * kQuantizeBlocks, kQuantizeThreads, 0, args, order, stages);
}

}  // namespace quads::kernels::cuda
