// Weights to FP8 and BF16 fragments: a block of threads a square of 128 rows x 128 k, which is
// FP8's block; two tiles.
#include "kernels/cuda/experts/fragment_plain.h"
#include "kernels/cuda/quantize/quantize_block.cuh"
#include "kernels/cuda/quantize/quantize_in_order.cuh"
#include "kernels/cuda/quantize/quantize_weights_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kSquareRows = 128;
constexpr int kSquareSlices = kSquareRows / 16;
constexpr int kRowWords = kStageK / 2;  // of two values
template <WeightFormat format>
constexpr int kSliceBytesOf = slice_bytes(format);

// Element (row, pair of channels) of a fragment's register, in words of the square's row.
__device__ __forceinline__ int fragment_word(int slice, int k16, int lane, int reg) {
  const int row = slice * 16 + (lane >> 2) + (reg & 1) * 8;
  return row * kRowWords + k16 * 8 + (lane & 3) + (reg >> 1) * 4;
}

__device__ __forceinline__ uint32_t e4m3_code(float x, float inverse_scale) {
  const float q = fmaxf(fminf(round_e4m3(x * inverse_scale), 448.0F), -448.0F);
  const uint32_t bits = __float_as_uint(q);
  const uint32_t sign = bits >> 31 << 7;
  const float magnitude = fabsf(q);
  if (magnitude < 0x1p-6F) return sign | static_cast<uint32_t>(magnitude * 512.0F);
  return sign | ((bits >> 20 & 0x7FFU) - (120U << 3));
}

// Square (rows, stage) of a matrix.
template <WeightFormat format>
__device__ __forceinline__ void pack_square(const QuantizeWeights& args, int stages, int matrix,
                                            int index) {
  __shared__ __align__(16) uint32_t square[kSquareRows * kRowWords];
  __shared__ uint32_t amax;
  const int stage = index % stages;
  const int64_t first_row = int64_t{index / stages} * kSquareRows;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) amax = 0;
  __syncthreads();

  const auto* w = reinterpret_cast<const uint16_t*>(args.w) + matrix * args.stride;
  uint32_t largest = 0;
  for (int i = thread; i < kSquareRows * kRowWords / 4; i += kQuantizeThreads) {
    const int64_t row = first_row + i / (kRowWords / 4);
    const int64_t channel = stage * kStageK + i % (kRowWords / 4) * 8;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (row < args.n && channel < args.k) {
      words = *reinterpret_cast<const uint4*>(w + row * args.k + channel);
    }
    reinterpret_cast<uint4*>(square)[i] = words;
    largest = __vmaxu2(largest, __vmaxu2(words.x & 0x7FFF7FFFU, words.y & 0x7FFF7FFFU));
    largest = __vmaxu2(largest, __vmaxu2(words.z & 0x7FFF7FFFU, words.w & 0x7FFF7FFFU));
  }
  if constexpr (format == WeightFormat::kFp8) {
    atomicMax(&amax, max(largest & 0xFFFFU, largest >> 16));
  }
  __syncthreads();

  const int slices = first_row + kSquareRows <= args.n ? kSquareSlices : kSquareSlices / 2;
  const int64_t tile = matrix * (args.n / kTileRows) + first_row / kTileRows;
  const auto slice_at = [&](int slice) {
    return args.fragments + (((tile + slice / 4) * stages + stage) * kTileSlices + slice % 4) *
                                kSliceBytesOf<format>;
  };
  if constexpr (format == WeightFormat::kFp8) {
    const float scale = power_of_two_scale(min(amax, kE4m3MaxBits + (115U << 7)), kE4m3MaxBits);
    const float inverse = __fdiv_rn(1.0F, scale);
    for (int i = thread; i < slices * 4 * 32; i += kQuantizeThreads) {
      const int lane = i % 32;
      const int k32 = i / 32 % 4;
      uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
#pragma unroll
        for (int reg = 0; reg < 4; ++reg) {
          const uint32_t two = square[fragment_word(i / 128, k32 * 2 + k16, lane, reg)];
          const uint32_t low = e4m3_code(__uint_as_float(two << 16), inverse);
          const uint32_t high = e4m3_code(__uint_as_float(two & 0xFFFF0000U), inverse);
          words[k16 * 2 + reg / 2] |= (low | high << 16) << (reg % 2 == 0 ? 8 : 0);
        }
      }
      __stcs(reinterpret_cast<uint4*>(slice_at(i / 128) + k32 * 512 + lane * 16),
             make_uint4(words[0], words[1], words[2], words[3]));
    }
    if (thread < slices) {
      const uint32_t half = __float_as_uint(scale * kFp8ScaleFactor) >> 16;
      const uint32_t pair = half | half << 16;
      *reinterpret_cast<uint4*>(slice_at(thread) + 16 * kStageK) =
          make_uint4(pair, pair, pair, pair);
    }
  } else {
    for (int i = thread; i < slices * 8 * 32; i += kQuantizeThreads) {
      const int lane = i % 32;
      const int k16 = i / 32 % 8;
      uint32_t words[4];
#pragma unroll
      for (int reg = 0; reg < 4; ++reg) {
        words[reg] = square[fragment_word(i / 256, k16, lane, reg)];
      }
      __stcs(reinterpret_cast<uint4*>(slice_at(i / 256) + k16 * 512 + lane * 16),
             make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
  if (index == 0 && thread == 0) args.global_scales[matrix] = 1.0F;
}

template <WeightFormat format>
__global__ void __launch_bounds__(kQuantizeThreads)
    pack_plain(QuantizeWeights args, QuantizeOrder order, int stages) {
  wait_for_previous_kernel();
  quantize_in_order(args, order, [&](int matrix, int square, uint32_t) {
    pack_square<format>(args, stages, matrix, square);
  });
  let_next_kernel_start();
}

}  // namespace

void launch_pack_plain(const CudaContext& context, const QuantizeWeights& args) {
  const int stages = stages_of(args.k);
  const auto squares = static_cast<int>((args.n + kSquareRows - 1) / kSquareRows) * stages;
  const QuantizeOrder order(context, args.matrices, args.n * args.k, squares);
  const bool fp8 = args.format == WeightFormat::kFp8;
  launch(context, "pack_plain",
         fp8 ? pack_plain<WeightFormat::kFp8> : pack_plain<WeightFormat::kBf16>,
         context.multiprocessors * kQuantizeBlocks, kQuantizeThreads, 0, args, order, stages);
}

}  // namespace quads::kernels::cuda
