// Weights from fragments: a warp takes 16 rows of 128 channels.
#include "kernels/cuda/experts/decode.cuh"
#include "kernels/cuda/experts/fragment_plain.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize/dequantize_weights.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kBlocks = kStageK / 16;  // of a stage

template <WeightFormat format>
constexpr int kBytes = slice_bytes(format);

/// Registers of the m16k16 fragments of the two blocks `pair` of a slice, without the factor.
template <WeightFormat format>
__device__ __forceinline__ void decode_pair(const uint8_t* slice, int pair, int lane,
                                            uint32_t a[2][4]) {
  if constexpr (kIsNvfp4<format>) {
    const uint2 words =
        *reinterpret_cast<const uint2*>(slice + pair / 2 * 512 + lane * 16 + pair % 2 * 8);
    const uint32_t scales =
        *reinterpret_cast<const uint32_t*>(slice + 1024 + (lane >> 2) * 16 + pair * 4);
    if constexpr (format == WeightFormat::kNvfp4Fp16) {
      decode_blocks_fp16(words.x, words.y, scales, a[0], a[1]);
    } else {
      decode_blocks(words.x, words.y, scales, a[0], a[1]);
    }
  } else if constexpr (format == WeightFormat::kFp8) {
    const uint4 words = *reinterpret_cast<const uint4*>(slice + pair * 512 + lane * 16);
    const uint2 scales = *reinterpret_cast<const uint2*>(slice + 16 * kStageK);
    decode_e4m3_pairs(words.x, &a[0][0], &a[0][1]);
    decode_e4m3_pairs(words.y, &a[0][2], &a[0][3]);
    decode_e4m3_pairs(words.z, &a[1][0], &a[1][1]);
    decode_e4m3_pairs(words.w, &a[1][2], &a[1][3]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t scale = i % 2 == 0 ? scales.x : scales.y;
      a[i / 4][i % 4] = as_bits(__hmul2_rn(as_pair(a[i / 4][i % 4]), as_pair(scale)));
    }
  } else {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint4 words = *reinterpret_cast<const uint4*>(slice + (pair * 2 + j) * 512 + lane * 16);
      a[j][0] = words.x;
      a[j][1] = words.y;
      a[j][2] = words.z;
      a[j][3] = words.w;
    }
  }
}

/// To BF16, exactly: the product of a value of a few bits and a power of two.
template <bool fp16>
__device__ __forceinline__ uint32_t scale_pair(uint32_t pair, float factor) {
  float low = __uint_as_float(pair << 16);
  float high = __uint_as_float(pair & 0xFFFF0000U);
  if constexpr (fp16) {
    low = __low2float(as_fp16_pair(pair));
    high = __high2float(as_fp16_pair(pair));
  }
  low *= factor;
  high *= factor;
  return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xFFFF0000U);
}

template <WeightFormat format>
__global__ void __launch_bounds__(kWarps * 32)
    dequantize(const __grid_constant__ DequantizeWeights args, int stages, int64_t units) {
  __shared__ int blocks[kMaxDequantizedK / 16];  // by position
  wait_for_previous_kernel();
  const int count = static_cast<int>(args.k / 16);
  for (int i = threadIdx.x; i < count; i += kWarps * 32) {
    blocks[args.block_position == nullptr ? i : args.block_position[i]] = i;
  }
  __syncthreads();
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (unit >= units) return;
  const int lane = threadIdx.x & 31;
  const int stage = static_cast<int>(unit % stages);
  const int64_t slice = unit / stages;  // of all matrices, 16 rows each
  const int64_t matrix = slice / (args.n / 16);
  const uint8_t* from =
      args.fragments +
      ((slice / kTileSlices * stages + stage) * kTileSlices + slice % kTileSlices) * kBytes<format>;
  const float factor =
      format == WeightFormat::kBf16 ? 1.0F : kDecodedWeightFactor * args.global_scales[matrix];
  auto* values = reinterpret_cast<uint16_t*>(args.values) + matrix * args.n * args.k;
  int64_t rows[2];  // g and g + 8 of the slice, in the matrix
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = slice % (args.n / 16) * 16 + (lane >> 2) + i * 8;
    rows[i] = args.paired ? paired_row(row, args.n) : row;
  }
  for (int pair = 0; pair < kBlocks / 2; ++pair) {
    uint32_t a[2][4];
    decode_pair<format>(from, pair, lane, a);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int position = stage * kBlocks + pair * 2 + j;
      if (position >= count) continue;
      uint16_t* to = values + blocks[position] * 16 + (lane & 3) * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // row g or g + 8, the block's first or second half
        *reinterpret_cast<uint32_t*>(to + rows[i & 1] * args.k + (i >> 1) * 8) =
            format == WeightFormat::kBf16
                ? a[j][i]
                : scale_pair<format == WeightFormat::kNvfp4Fp16>(a[j][i], factor);
      }
    }
  }
}

template <WeightFormat format>
void run(const CudaContext& context, const DequantizeWeights& args) {
  const int stages = stages_of(args.k);
  const int64_t units = args.matrices * (args.n / 16) * stages;
  launch(context, "dequantising weights", dequantize<format>,
         static_cast<unsigned>((units + kWarps - 1) / kWarps), kWarps * 32, 0, args, stages, units);
}

}  // namespace

void launch_dequantize_weights(const CudaContext& context, const DequantizeWeights& args) {
  switch (args.format) {
    case WeightFormat::kNvfp4:
      return run<WeightFormat::kNvfp4>(context, args);
    case WeightFormat::kNvfp4Fp16:
      return run<WeightFormat::kNvfp4Fp16>(context, args);
    case WeightFormat::kFp8:
      return run<WeightFormat::kFp8>(context, args);
    case WeightFormat::kBf16:
      return run<WeightFormat::kBf16>(context, args);
  }
}

}  // namespace quads::kernels::cuda
