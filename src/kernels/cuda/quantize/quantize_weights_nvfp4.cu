// Weights to NVFP4 fragments: a block of threads a strip of 64 rows x a few stages of 128 k, a tile
// a stage; a warp brings its values to shared memory a stage ahead.
//
// A matrix's amax must be known before its first value is rounded, but only to a power of two: its
// global scale. The scale that is there from the last sync nearly always is right again, so a first
// kernel quantises by it and finds the amax, and a second one quantises anew what it was wrong for.
// Where none is there (0), the first kernel only searches.
#include "kernels/cuda/experts/fragment_codes_fp16.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize/quantize_block.cuh"
#include "kernels/cuda/quantize/quantize_weights_launch.h"
#include "kernels/cuda/tma.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kResident = 4;  // blocks of a multiprocessor
constexpr int kBlocksOfStage = kStageK / 16;
constexpr uint32_t kBf16Infinity = 0x7F80;

/// Raises *bits, the maximum over all threads; it is the same in any order. By all threads of a
/// block, of pairs of magnitudes.
__device__ __forceinline__ void raise_largest(uint32_t pair, uint32_t* bits) {
  __shared__ uint32_t of_warps[kWarps];
  const uint32_t of_warp = __reduce_max_sync(~0U, max(pair & 0xFFFFU, pair >> 16));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) largest = max(largest, of_warps[i]);
  atomicMax(bits, largest);
}

// gridDim.y matrices.
__global__ void __launch_bounds__(kThreads)
    largest_magnitudes(const Bf16* w, int64_t stride, int64_t size, uint32_t* amax_bits) {
  wait_for_previous_kernel();
  const auto* words = reinterpret_cast<const uint4*>(w + blockIdx.y * stride);
  const int64_t share = (size / 8 + gridDim.x - 1) / gridDim.x;
  const int64_t begin = blockIdx.x * share;
  const int64_t end = min(begin + share, size / 8);
  uint32_t largest = 0;
#pragma unroll 8
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const uint4 four = words[i];
    largest = __vmaxu2(largest, four.x & 0x7FFF7FFFU);
    largest = __vmaxu2(largest, four.y & 0x7FFF7FFFU);
    largest = __vmaxu2(largest, four.z & 0x7FFF7FFFU);
    largest = __vmaxu2(largest, four.w & 0x7FFF7FFFU);
  }
  raise_largest(largest, amax_bits + blockIdx.y);
  let_next_kernel_start();
}

// Pairs of BF16, each half rounded once; subnormals are numbers like others.
__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t smaller(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
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
// (fragment_codes.h); `sign` masks the signs' bits.
//
// Magnitudes over the scale are rounded to BF16 first, and from there to the grid. x has 8
// significand bits, the scale 4 and what lies in the middle of two codes 3: x over the scale is
// that, or differs by a 254th of it at least, more than half a step of BF16. Adding 96 powers of
// two rounds to halves of the power; the last addition leaves what is above, times 2^-126, which
// is subnormal where e2m1 is: the code's three bits are the last exponent bits and the first of
// the mantissa.
template <bool fp16>
__device__ __forceinline__ uint32_t quantize_pair(uint32_t x, float reciprocal, uint32_t sign) {
  constexpr uint32_t kExponent = 0x7F807F80, kOne = 0x3F803F80, kSix = 0x40C040C0;
  constexpr uint32_t k96 = 0x42C042C0, kUnit = 0x00800080;  // 2^-126
  constexpr uint32_t kMinus96Units = 0x83C083C0;
  const float first = fabsf(__uint_as_float(x << 16)) * reciprocal;
  const float second = fabsf(__uint_as_float(x & 0xFFFF0000U)) * reciprocal;
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
  y = smaller(y, kSix);
  const uint32_t power = larger(y & kExponent, kOne);
  const uint32_t sum = multiply_add(power, k96, y);
  uint32_t code = multiply_add(sum, kUnit, multiply(power, kMinus96Units));
  if (fp16) code <<= 3;
  return code | (x & sign);
}

// The block at each position along K, from the position of each block; -1 behind the end, up to a
// whole stage.
__device__ __forceinline__ void invert_positions(const int32_t* position_of, int blocks, int stages,
                                                 int32_t* block_at) {
  const int first = static_cast<int>(threadIdx.x);
  for (int i = first; i < stages * kBlocksOfStage; i += kThreads) {
    block_at[i] = position_of == nullptr && i < blocks ? i : -1;
  }
  __syncthreads();
  if (position_of == nullptr) return;
  for (int i = first; i < blocks; i += kThreads) block_at[position_of[i]] = i;
}

/// How a matrix's stages are cut into strips of about four.
struct Strips {
  int stages;
  int count;   // along K
  int length;  // the last may be shorter
  explicit Strips(int stages)
      : stages(stages), count((stages + 3) / 4), length((stages + count - 1) / count) {}
};

// What a warp has of a stage: 16 rows x 64 channels, 128 bytes a row, swizzled.
constexpr int kWarpBytes = 16 * 128;
constexpr int kBufferBytes = 2 * kWarpBytes * kWarps;

/// A warp's copies: a lane has a chunk of 16 bytes of every fourth row.
class WarpCopies {
 public:
  __device__ __forceinline__ WarpCopies(const QuantizeWeights& args, const int32_t* block_at,
                                        int matrix, int64_t first_row, int half, uint32_t buffer)
      : block_at_(block_at + half * 4 + lane() % 8 / 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane() / 8 + i * 4;
      const int64_t from = args.paired ? paired_row(first_row + row, args.n) : first_row + row;
      rows_[i] = args.w + matrix * args.stride + from * args.k + lane() % 2 * 8;
      to_[i] = box_chunk(buffer, row, lane() % 8);
    }
  }
  __device__ __forceinline__ void start(int stage, int turn) const {
    const int block = block_at_[stage * kBlocksOfStage];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_16(to_[i] + turn * kWarpBytes, rows_[i] + max(block, 0) * 16, block >= 0);
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  const int32_t* block_at_;
  const Bf16* rows_[4];
  uint32_t to_[4];
};

// A stage of a warp: 16 rows x 64 channels in `buffer`, which are 16 bytes of codes for each lane.
// A lane has two rows, as an MMA's fragment has, and of each of four blocks the channels of two
// pairs; four lanes have a block. `out`: of the tile's slice. Returns a pair of magnitudes whose
// largest over the lanes is the largest. g = 0: does no more.
template <bool fp16>
__device__ __forceinline__ uint32_t pack_stage(uint32_t buffer, float g, int half, uint8_t* out) {
  constexpr int kRows = 2, kBlocks = 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, part = lane % 4;
  uint32_t x[kBlocks][4];  // of a block: row 0 and row 1 of the first pairs, then of the second
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    load_matrices(x[b], box_chunk(buffer, lane & 15, b * 2 + (lane >> 4)));
  }
  uint32_t largest[kBlocks];  // row 0 in the low half
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    uint32_t of_row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      of_row[r] = __vmaxu2(x[b][r] & 0x7FFF7FFFU, x[b][r + 2] & 0x7FFF7FFFU);
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
  if (g == 0.0F) return own;
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

  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t pairs[8];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float reciprocal = __shfl_sync(~0U, reciprocals[r], lane / 4 * 4 + i * 2 + b);
        const uint32_t sign = reciprocal == 0.0F ? 0U : 0x80008000U;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          pairs[b * 4 + j * 2 + r] = quantize_pair<fp16>(x[i * 2 + b][j * 2 + r], reciprocal, sign);
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
  return own;  // the four lanes have the four blocks
}

// Strip `strip` of a matrix under its global scale (0: pack_stage), by all threads of a block: a
// warp has half of a slice's channels. Returns what pack_stage does.
template <bool fp16>
__device__ __forceinline__ uint32_t pack_strip(const QuantizeWeights& args, const Strips& strips,
                                               const int32_t* block_at, uint32_t buffers,
                                               int matrix, int strip, float g) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int slice = warp / 2, half = warp % 2;
  const int row_tile = strip / strips.count;
  const int first = (strip - row_tile * strips.count) * strips.length;
  const int end = min(first + strips.length, strips.stages);
  const uint32_t buffer = buffers + warp * 2 * kWarpBytes;
  const WarpCopies copies(args, block_at, matrix, int64_t{row_tile} * kTileRows + slice * 16, half,
                          buffer);
  const int64_t tile = (matrix * (args.n / kTileRows) + row_tile) * strips.stages + first;
  uint8_t* out = args.fragments + tile * kTileBytes + slice * kSliceBytes;
  uint32_t largest = 0;
  copies.start(first, 0);
  commit_copies();
  for (int stage = first, turn = 0; stage < end; ++stage, turn ^= 1, out += kTileBytes) {
    if (stage + 1 < end) copies.start(stage + 1, turn ^ 1);
    commit_copies();
    wait_for_copies<1>();
    __syncwarp();
    largest = __vmaxu2(largest, pack_stage<fp16>(buffer + turn * kWarpBytes, g, half, out));
    __syncwarp();  // before the buffer is filled anew
  }
  return largest;
}

// Whatever a scale's memory holds, as one that power_of_two_scale could give, or 0.
__device__ __forceinline__ float scale_from(float memory) {
  if (memory == 0.0F) return 0.0F;
  const uint32_t exponent = __float_as_uint(memory) >> 23 & 0xFFU;
  return __uint_as_float(min(max(exponent, 27U), 244U) << 23);
}
__device__ __forceinline__ float scale_of(uint32_t amax) {
  return power_of_two_scale(min(amax, kBf16Infinity - 1), kNvfp4MaxBits);
}

// Block (strip, matrix).
template <bool fp16>
__global__ void __launch_bounds__(kThreads, kResident)
    pack_nvfp4(QuantizeWeights args, Strips strips) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* block_at = reinterpret_cast<int32_t*>(shared + kBufferBytes);
  invert_positions(args.block_position, static_cast<int>(args.k / 16), strips.stages, block_at);
  wait_for_previous_kernel();
  __syncthreads();
  const auto matrix = static_cast<int>(blockIdx.y);
  const auto strip = static_cast<int>(blockIdx.x);
  const float g = scale_from(args.global_scales[matrix]);
  if (strip == 0 && threadIdx.x == 0) args.scratch[matrix] = __float_as_uint(g);
  raise_largest(pack_strip<fp16>(args, strips, block_at, shared_address(shared), matrix, strip, g),
                args.amax_bits + matrix);
  let_next_kernel_start();
}

// All blocks take strips of the matrices that were quantised under another scale than theirs.
template <bool fp16>
__global__ void __launch_bounds__(kThreads, kResident)
    pack_nvfp4_anew(QuantizeWeights args, Strips strips, int strips_of_matrix) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* block_at = reinterpret_cast<int32_t*>(shared + kBufferBytes);
  invert_positions(args.block_position, static_cast<int>(args.k / 16), strips.stages, block_at);
  wait_for_previous_kernel();
  __syncthreads();
  const auto block = static_cast<int>(blockIdx.x);
  int strip = block;  // of all such matrices' the next one, counted from the matrix at hand
  for (int first = 0; first < args.matrices; first += kThreads) {
    const int own = first + static_cast<int>(threadIdx.x);
    bool wrong = false;
    if (own < args.matrices) {
      const float g = scale_of(args.amax_bits[own]);
      wrong = args.scratch[own] != __float_as_uint(g);
      if (block == 0) args.global_scales[own] = g;
    }
    if (__syncthreads_or(wrong) == 0) continue;
    const int end = min(first + kThreads, args.matrices);
    for (int matrix = first; matrix < end; ++matrix) {
      const float g = scale_of(args.amax_bits[matrix]);
      if (args.scratch[matrix] == __float_as_uint(g)) continue;
      for (; strip < strips_of_matrix; strip += static_cast<int>(gridDim.x)) {
        pack_strip<fp16>(args, strips, block_at, shared_address(shared), matrix, strip, g);
      }
      strip -= strips_of_matrix;
    }
  }
  let_next_kernel_start();
}

template <bool fp16>
void run(const CudaContext& context, const QuantizeWeights& args) {
  const Strips strips(stages_of(args.k));
  const int strips_of_matrix = static_cast<int>(args.n / kTileRows) * strips.count;
  const int bytes =
      kBufferBytes + strips.stages * kBlocksOfStage * static_cast<int>(sizeof(int32_t));
  launch(context, "pack_nvfp4", pack_nvfp4<fp16>, dim3(strips_of_matrix, args.matrices), kThreads,
         bytes, args, strips);
  launch(context, "pack_nvfp4_anew", pack_nvfp4_anew<fp16>, context.multiprocessors * kResident,
         kThreads, bytes, args, strips, strips_of_matrix);
}

}  // namespace

void launch_weight_amax(const CudaContext& context, const Bf16* w, int matrices, int64_t stride,
                        int64_t size, uint32_t* amax_bits) {
  // Enough blocks to fill the device, and no more than have 16 loads a thread.
  const int64_t wanted = (size / 8 + kThreads * 16 - 1) / (kThreads * 16);
  const int64_t fill = (int64_t{context.multiprocessors} * 8 + matrices - 1) / matrices;
  const auto x = static_cast<int>(wanted < fill ? wanted : fill);
  launch(context, "largest_magnitudes", largest_magnitudes, dim3(x, matrices), kThreads, 0, w,
         stride, size, amax_bits);
}

void launch_pack_nvfp4(const CudaContext& context, const QuantizeWeights& args) {
  if (args.format == WeightFormat::kNvfp4Fp16) return run<true>(context, args);
  run<false>(context, args);
}

}  // namespace quads::kernels::cuda
