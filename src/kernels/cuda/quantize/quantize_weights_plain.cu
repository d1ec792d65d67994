// Weights to FP8 and BF16 fragments in one pass: a block of threads 256 rows of a stage of 128 k,
// as fragments have them: two of FP8's blocks of 128 x 128, or of a gate_up's rows, of which gates
// and ups alternate, one of each. A block's scale needs no other value of its matrix.
#include <cuda_fp8.h>

#include "kernels/cuda/experts/fragment_plain.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quantize/quantize_block.cuh"
#include "kernels/cuda/quantize/quantize_weights_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSquare = 128;  // FP8's blocks, rows and k
static_assert(kSquare == kStageK);
constexpr int kRows = 2 * kSquare;  // of a block of threads, one slice of 16 a warp
static_assert(kRows / 16 == kThreads / 32);
constexpr int kRowBytes = kStageK * 2;
constexpr int kRowChunks = kRowBytes / 16;
constexpr int kSharedBytes = kRows * kRowBytes;
template <WeightFormat format>
constexpr int kSliceBytesOf = slice_bytes(format);

// Values in shared memory, their 16-byte chunks swizzled, so that neither rows nor fragments meet
// in a bank.
__device__ __forceinline__ uint32_t chunk_at(uint32_t values, int row, int chunk) {
  return values + row * kRowBytes + ((chunk ^ (row & 7)) << 4);
}

// The registers of the fragment of a slice's 16 k.
__device__ __forceinline__ void load_fragment(uint32_t values, int slice, int k16, int lane,
                                              uint32_t words[4]) {
  load_matrices(words, chunk_at(values, slice * 16 + (lane & 15), k16 * 2 + (lane >> 4)));
}

// The larger magnitudes of pairs of BF16.
__device__ __forceinline__ uint32_t larger(uint32_t magnitudes, uint32_t pair) {
  return __vmaxu2(magnitudes, pair & 0x7FFF7FFFU);
}
__device__ __forceinline__ uint32_t largest_of_warp(uint32_t magnitudes) {
  return __reduce_max_sync(~0U, max(magnitudes & 0xFFFFU, magnitudes >> 16));
}

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

/// The rows of W that a block of threads has, in two halves, each of neighbours.
struct Halves {
  int64_t begin[2], end[2];
  __device__ __forceinline__ Halves(const QuantizeWeights& args, int64_t index) {
    const int64_t half_n = args.n / 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      begin[h] = args.paired ? h * half_n + index * kSquare : index * kRows + h * kSquare;
      end[h] = min(begin[h] + kSquare, args.paired ? (h + 1) * half_n : args.n);
    }
  }
  /// The half of eight rows among the 16 of a slice, and the first of them.
  __device__ __forceinline__ int half_of(const QuantizeWeights& args, int slice, int eight) const {
    return args.paired ? eight : slice / (kSquare / 16);
  }
  __device__ __forceinline__ int64_t row_of(const QuantizeWeights& args, int slice,
                                            int eight) const {
    return args.paired ? begin[eight] + slice * 8 : begin[0] + slice * 16 + eight * 8;
  }
};

/// The magnitudes of FP8's blocks that a block of threads has rows of: two a half, as the ups of a
/// gate_up may begin within one.
class SquareMagnitudes {
 public:
  static constexpr int kCount = 4;
  __device__ __forceinline__ SquareMagnitudes(const Halves& halves, uint32_t* shared)
      : halves_(halves), shared_(shared) {}
  __device__ __forceinline__ uint32_t& of(int half, int64_t row) const {
    return shared_[half * 2 + static_cast<int>(row / kSquare - halves_.begin[half] / kSquare)];
  }
  /// What other blocks of threads have of these blocks.
  __device__ __forceinline__ void add_rows_elsewhere(const QuantizeWeights& args, int64_t matrix,
                                                     int stage) const {
    const int chunk = static_cast<int>(threadIdx.x) % kRowChunks;
    const int channel = stage * kStageK + chunk * 8;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t begin = halves_.begin[h], end = halves_.end[h];
      if (begin >= end) continue;
      const int64_t last = min((end + kSquare - 1) / kSquare * kSquare, args.n);
      for (int64_t square = begin / kSquare * kSquare; square < last; square += kSquare) {
        uint32_t largest = 0;
        for (int i = static_cast<int>(threadIdx.x) / kRowChunks; i < kSquare;
             i += kThreads / kRowChunks) {
          const int64_t row = square + i;
          if (row >= last || (row >= begin && row < end) || channel >= args.k) continue;
          const uint4 words = *reinterpret_cast<const uint4*>(args.w + matrix * args.stride +
                                                              row * args.k + channel);
          largest = larger(larger(largest, words.x), words.y);
          largest = larger(larger(largest, words.z), words.w);
        }
        largest = largest_of_warp(largest);
        if (threadIdx.x % 32 == 0 && largest > 0) atomicMax(&of(h, square), largest);
      }
    }
  }

 private:
  const Halves& halves_;
  uint32_t* shared_;
};

// Block (stage of 256 rows, matrix).
template <WeightFormat format>
__global__ void __launch_bounds__(kThreads, 3) pack_plain(QuantizeWeights args, int stages) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t largest_of_squares[SquareMagnitudes::kCount];
  __shared__ uint32_t largest_of_block;
  const uint32_t values = shared_address(shared);
  const auto matrix = static_cast<int64_t>(blockIdx.y);
  const int64_t index = blockIdx.x / stages;
  const int stage = static_cast<int>(blockIdx.x) % stages;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int slice = thread / 32;
  if (thread < SquareMagnitudes::kCount) largest_of_squares[thread] = 0;
  if (thread == 0) largest_of_block = 0;
  wait_for_previous_kernel();

  const int chunk = thread % kRowChunks;
  const int channel = stage * kStageK + chunk * 8;
#pragma unroll
  for (int i = 0; i < kRows * kRowChunks / kThreads; ++i) {
    const int row = thread / kRowChunks + i * (kThreads / kRowChunks);
    const int64_t place = index * kRows + row;
    const bool valid = place < args.n && channel < args.k;
    const int64_t from = args.paired ? paired_row(place, args.n) : place;
    copy_16(chunk_at(values, row, chunk),
            valid ? args.w + matrix * args.stride + from * args.k + channel : args.w, valid);
  }
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  const int64_t first_slice = index * (kRows / 16) + slice;
  const bool there = first_slice * 16 < args.n;
  const int64_t tile = matrix * (args.n / kTileRows) + first_slice / kTileSlices;
  uint8_t* out =
      args.fragments +
      ((tile * stages + stage) * kTileSlices + first_slice % kTileSlices) * kSliceBytesOf<format>;
  uint32_t largest[2] = {0, 0};  // of rows g and g + 8
#pragma unroll
  for (int k16 = 0; k16 < kStageK / 16; ++k16) {
    uint32_t words[4];
    load_fragment(values, slice, k16, lane, words);
#pragma unroll
    for (int i = 0; i < 4; ++i) largest[i % 2] = larger(largest[i % 2], words[i]);
    if (format == WeightFormat::kBf16 && there) {
      __stcs(reinterpret_cast<uint4*>(out + k16 * 512 + lane * 16),
             make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) largest[i] = largest_of_warp(largest[i]);
  if (lane == 0) atomicMax(&largest_of_block, max(largest[0], largest[1]));

  if constexpr (format == WeightFormat::kFp8) {
    const Halves halves(args, index);
    const SquareMagnitudes squares(halves, largest_of_squares);
    if (lane == 0 && there) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        atomicMax(&squares.of(halves.half_of(args, slice, i), halves.row_of(args, slice, i)),
                  largest[i]);
      }
    }
    if (args.paired && args.n / 2 % kSquare != 0) squares.add_rows_elsewhere(args, matrix, stage);
    __syncthreads();
    if (there) {
      float inverse[2];
      uint32_t scales[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t amax =
            squares.of(halves.half_of(args, slice, i), halves.row_of(args, slice, i));
        const float scale = power_of_two_scale(min(amax, kE4m3MaxBits + (115U << 7)), kE4m3MaxBits);
        inverse[i] = __uint_as_float((254U << 23) - __float_as_uint(scale));
        const uint32_t half = __float_as_uint(scale * kFp8ScaleFactor) >> 16;
        scales[i] = half | half << 16;
      }
#pragma unroll
      for (int k32 = 0; k32 < kStageK / 32; ++k32) {
        uint32_t codes[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t words[4];
          load_fragment(values, slice, k32 * 2 + i, lane, words);
          codes[i * 2] = e4m3_word(words[0], words[1], inverse[0], inverse[1]);
          codes[i * 2 + 1] = e4m3_word(words[2], words[3], inverse[0], inverse[1]);
        }
        __stcs(reinterpret_cast<uint4*>(out + k32 * 512 + lane * 16),
               make_uint4(codes[0], codes[1], codes[2], codes[3]));
      }
      if (lane == 0) {
        *reinterpret_cast<uint4*>(out + 16 * kStageK) =
            make_uint4(scales[0], scales[1], scales[0], scales[1]);
      }
    }
  } else {
    __syncthreads();
  }
  if (thread == 0) {
    atomicMax(args.amax_bits + matrix, largest_of_block);
    if (blockIdx.x == 0) args.global_scales[matrix] = 1.0F;
  }
  let_next_kernel_start();
}

}  // namespace

void launch_pack_plain(const CudaContext& context, const QuantizeWeights& args) {
  const int stages = stages_of(args.k);
  const auto blocks = static_cast<unsigned>((args.n + kRows - 1) / kRows * stages);
  const bool fp8 = args.format == WeightFormat::kFp8;
  launch(context, "pack_plain",
         fp8 ? pack_plain<WeightFormat::kFp8> : pack_plain<WeightFormat::kBf16>,
         dim3(blocks, static_cast<unsigned>(args.matrices)), kThreads, kSharedBytes, args, stages);
}

}  // namespace quads::kernels::cuda
