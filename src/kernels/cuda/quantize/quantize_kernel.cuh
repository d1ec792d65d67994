// The row quantiser: a thread a block of 16, eight threads a stage of 128.
#pragma once

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/experts/decode.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize/quantize_block.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"

namespace quads::kernels::cuda {

constexpr int kBlock = 16;
constexpr int kMaxRowThreads = kMaxQuantizedK / kBlock;
constexpr uint32_t kBf16Infinity = 0x7F80;

/// A block's eight pairs to the row's buffer, two 16-byte chunks.
__device__ __forceinline__ void put_words(uint4* row, int position, const uint32_t words[8]) {
  row[position * 2] = make_uint4(words[0], words[1], words[2], words[3]);
  row[position * 2 + 1] = make_uint4(words[4], words[5], words[6], words[7]);
}

/// A block's values to the row's buffer, as BF16 (they are exact).
__device__ __forceinline__ void put_block(uint4* row, int position, const float q[16]) {
  uint32_t words[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    words[i] = __byte_perm(__float_as_uint(q[2 * i]), __float_as_uint(q[2 * i + 1]), 0x7632);
  }
  put_words(row, position, words);
}

/// A block's values in units of g as FP16, eight pairs; exact.
__device__ __forceinline__ void pack_fp16(const float q[16], float inverse_g, uint32_t words[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    words[i] = as_bits(__floats2half2_rn(q[2 * i] * inverse_g, q[2 * i + 1] * inverse_g));
  }
}

/// bf16(silu(gate) * up) of a block.
__device__ __forceinline__ void load_silu_block(const float* gate, const float* up,
                                                uint32_t words[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 g = reinterpret_cast<const float4*>(gate)[i];
    const float4 u = reinterpret_cast<const float4*>(up)[i];
    words[2 * i] = as_bits(__floats2bfloat162_rn(silu(g.x) * u.x, silu(g.y) * u.y));
    words[2 * i + 1] = as_bits(__floats2bfloat162_rn(silu(g.z) * u.z, silu(g.w) * u.w));
  }
}

/// What the residual x - q1 leaves of one block, in place of x.
__device__ __forceinline__ void mask_residual(const uint8_t* mask, float x[16]) {
  const uint4 bytes = *reinterpret_cast<const uint4*>(mask);
  const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if ((words[i / 4] >> (i % 4 * 8) & 0xFFU) == 0) x[i] = 0.0F;
  }
}

/// A row's buffer to its place in an image: whole lines of 128 bytes, 8 threads each. Chunks are in
/// the image's order, so their contents are found by the swizzle.
__device__ __forceinline__ void copy_row(const uint4* row, const ImageRow& place, int stages,
                                         int thread, int threads, uint16_t* image) {
  const int lane = place.index & 7;
  const int64_t stage_step = static_cast<int64_t>(place.padded_rows) * kStageK;
  uint16_t* to = image + image_offset(place, stages, 0, lane);  // of the chunk that lies first
  for (int j = thread; j < stages * 16; j += threads) {
    *reinterpret_cast<uint4*>(to + (j >> 4) * stage_step + (j >> 3 & 1) * 512 + (j & 7) * 8) =
        row[j ^ lane];
  }
}

/// Where a copy of a row goes.
__device__ __forceinline__ ImageRow place_of(const QuantizeRows& args, int64_t row, int copy) {
  if (row >= args.rows || copy >= args.copies) return {0, 0, -1, 0};
  return args.image_rows[row * args.copies + copy];
}

__device__ __forceinline__ bool counts(const QuantizeRows& args, int64_t row) {
  if (args.counted == nullptr) return true;
  return args.counted[args.tokens == nullptr ? row : args.tokens[row]] != 0;
}

/// Sums of residuals, in shared memory: registers are what this kernel is short of. A thread has
/// 16, as four words of 16 bytes, a stride of all threads apart. A residual is at most 448 g, so
/// its units of g / 2^16 are below 2^25: so many rows fit 32 bits.
constexpr int kSummedRows = 128;

__device__ __forceinline__ void add_residuals(const float x[16], const float q[16], float g,
                                              uint4* sums) {
  const float inverse_unit = 65536.0F / g;  // exact
  const auto units = [&](int i) { return __float2uint_rn(fabsf(x[i] - q[i]) * inverse_unit); };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint4& sum = sums[i * blockDim.x + threadIdx.x];
    sum = make_uint4(sum.x + units(4 * i), sum.y + units(4 * i + 1), sum.z + units(4 * i + 2),
                     sum.w + units(4 * i + 3));
  }
}

/// The block's sums to the totals, and 0 in their place. `block_at`: the block of each thread of a
/// row. By all threads, between barriers.
__device__ __forceinline__ void add_to_totals(const QuantizeRows& args, const QuantizeShape& shape,
                                              const uint16_t* block_at, uint4* sums) {
  auto* totals = reinterpret_cast<unsigned long long*>(args.residual_sums);
  for (int c = threadIdx.x; c < args.k; c += blockDim.x) {
    const int thread = c / kBlock;
    unsigned long long sum = 0;
    for (int row = 0; row < shape.block_rows; ++row) {
      uint4* words = sums + c % kBlock / 4 * blockDim.x + row * shape.row_threads + thread;
      auto* word = reinterpret_cast<uint32_t*>(words) + c % 4;
      sum += *word;
      *word = 0;
    }
    if (sum != 0) atomicAdd(totals + block_at[thread] * kBlock + c % kBlock, sum);
  }
}

/// q1 of a block and, for NVFP4, the E4M3 scale s1. `amax` is the block's, `g` the scale above.
template <WeightFormat format>
__device__ __forceinline__ void quantize_first(const float x[16], uint32_t amax, float g,
                                               float q[16], float* s1) {
  if constexpr (kIsNvfp4<format>) {
    *s1 = e4m3_scale(__uint_as_float(amax << 16), 1.0F / g);
    quantize_values(x, *s1 * g, q);
  } else if constexpr (format == WeightFormat::kFp8) {
#pragma unroll
    for (int i = 0; i < 16; ++i) q[i] = round_e4m3(x[i] * (1.0F / g)) * g;
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) q[i] = x[i];
  }
}

/// `gated`: from gate_up. `statistics`: with residual_sums.
template <WeightFormat format, bool gated, bool statistics>
__global__ void __launch_bounds__(kMaxRowThreads)
    quantize(const __grid_constant__ QuantizeRows args,
             const __grid_constant__ QuantizeShape shape) {
  constexpr bool kNvfp4 = kIsNvfp4<format>;
  constexpr bool kFp16 = format == WeightFormat::kNvfp4Fp16;
  extern __shared__ __align__(16) uint4 buffers[];
  __shared__ uint32_t stage_amax[kMaxRowThreads / 8];  // of 8 blocks
  __shared__ uint16_t block_at[kMaxRowThreads];
  const int chunks1 = shape.stages * 16;
  const int chunks2 = shape.residual_stages * 16;
  const int local_row = threadIdx.x / shape.row_threads;
  const int position =
      threadIdx.x - local_row * shape.row_threads;  // of the thread's block along K
  uint4* row1 = buffers + local_row * (chunks1 + chunks2);
  uint4* row2 = row1 + chunks1;
  uint4* behind = buffers + shape.block_rows * (chunks1 + chunks2);
  auto* places = reinterpret_cast<ImageRow*>(behind) + local_row * args.copies;
  // The block at each position: so warps are compensated as a whole, or not at all.
  const int blocks = static_cast<int>(args.k / kBlock);
  for (int i = threadIdx.x; i < shape.row_threads; i += blockDim.x) {
    const bool permuted = kNvfp4 && i < blocks && args.block_position != nullptr;
    block_at[permuted ? args.block_position[i] : i] = static_cast<uint16_t>(i);
  }
  __syncthreads();
  const int block = block_at[position];
  uint4* sums = behind + shape.block_rows * args.copies;
  if constexpr (statistics) {
    for (int i = 0; i < 4; ++i) sums[i * blockDim.x + threadIdx.x] = make_uint4(0, 0, 0, 0);
  }
  int summed = 0;  // rows
  bool waits = true;

  for (int group = blockIdx.x; group < shape.groups; group += gridDim.x) {
    const int64_t row = static_cast<int64_t>(group) * shape.block_rows + local_row;
    const auto load_places = [&] {  // all at once: one wait, not one a copy
      for (int copy = position; copy < args.copies; copy += shape.row_threads) {
        places[copy] = place_of(args, row, copy);
      }
    };
    uint32_t words[8] = {};
    const auto load_words = [&] {  // before it is known whether the row goes anywhere
      if (row >= args.rows || block >= blocks) return;
      if constexpr (gated) {
        const float* source = args.gate_up + row * args.ldx + block * kBlock;
        load_silu_block(source, source + args.k, words);
      } else {
        const auto* source = reinterpret_cast<const uint16_t*>(args.x) + row * args.ldx;
        load_block(source + block * kBlock, words);
      }
    };
    if (args.older == OlderInput::kPlaces) load_places();
    if (args.older == OlderInput::kRows) load_words();
    if (waits) {
      wait_for_previous_kernel();
      let_next_kernel_start();
      waits = false;
    }
    if (args.older != OlderInput::kPlaces) load_places();
    if (args.older != OlderInput::kRows) load_words();
    float x[16];
    const uint32_t amax = unpack_block(words, x);
    uint32_t largest = amax;
#pragma unroll
    for (int d = 1; d < 8; d *= 2) largest = max(largest, __shfl_xor_sync(~0U, largest, d));
    if (threadIdx.x % 8 == 0) stage_amax[threadIdx.x / 8] = largest;
    __syncthreads();
    bool live = false;
    for (int copy = 0; copy < args.copies; ++copy) live |= places[copy].index >= 0;
    const bool in_row = live && block < blocks;
    float row_scale = 1.0F;

    if (live) {
      uint32_t whole = 0;
      for (int i = 0; i < shape.stages; ++i) {
        whole = max(whole, stage_amax[local_row * shape.stages + i]);
      }
      const float g = kNvfp4 ? power_of_two_scale(whole, kNvfp4MaxBits)
                             : power_of_two_scale(largest, kE4m3MaxBits);
      row_scale = g;
      float q[16];
      float s1 = 0.0F;
      quantize_first<format>(x, amax, g, q, &s1);
      bool bad = whole >= kBf16Infinity;
      if (bad) {  // never laundered: the row's products are NaN
#pragma unroll
        for (int i = 0; i < 16; ++i) q[i] = __uint_as_float(0x7FC00000U);
      } else if (whole >= 0x7F00U) {
        bad = !(amax_of(q) < __uint_as_float(0x7F800000U));
      }
      if (bad && in_row) atomicMin(args.first_bad_row, static_cast<int32_t>(row));
      if constexpr (!kFp16) put_block(row1, position, q);
      if constexpr (kNvfp4) {
        const bool compensated = in_row && position < args.residual_blocks;
        if constexpr (statistics) {
          if (in_row && !bad && counts(args, row)) add_residuals(x, q, g, sums);
        }
        uint32_t first[8];  // q1 as FP16
        if constexpr (kFp16) pack_fp16(q, 1.0F / g, first);
        if (kFp16 ? compensated : position < shape.residual_stages * 8) {
#pragma unroll
          for (int i = 0; i < 16; ++i) x[i] = compensated ? x[i] - q[i] : 0.0F;
          if (compensated && args.channel_mask != nullptr) {
            mask_residual(args.channel_mask + block * kBlock, x);
          }
          float s2 = e4m3_scale(amax_of(x), 1.0F / g);
          if (args.scale_floor) s2 = fmaxf(s2, residual_scale_floor(s1));
          quantize_values(x, s2 * g, q);
          if constexpr (kFp16) {
            uint32_t second[8];
            pack_fp16(q, 1.0F / g, second);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              first[i] = as_bits(__hadd2_rn(as_fp16_pair(first[i]), as_fp16_pair(second[i])));
            }
          } else {
            put_block(row2, position, q);
          }
        }
        if constexpr (kFp16) put_words(row1, position, first);
      }
    }
    __syncthreads();

    if (live) {
      for (int copy = 0; copy < args.copies; ++copy) {
        const ImageRow to = places[copy];
        if (to.index < 0) continue;
        if constexpr (kFp16) {
          if (position == 0) args.row_scales[to.base + to.index] = row_scale;
        }
        copy_row(row1, to, shape.stages, position, shape.row_threads,
                 reinterpret_cast<uint16_t*>(args.q1));
        copy_row(row2, to, shape.residual_stages, position, shape.row_threads,
                 reinterpret_cast<uint16_t*>(args.q2));
      }
    }
    __syncthreads();  // the buffers are free
    if constexpr (statistics) {
      if (++summed % kSummedRows == 0) {
        add_to_totals(args, shape, block_at, sums);
        __syncthreads();
      }
    }
  }
  if constexpr (statistics) add_to_totals(args, shape, block_at, sums);
}

template <WeightFormat format, bool gated, bool statistics = false>
void launch_quantize(const CudaContext& context, const QuantizeRows& args,
                     const QuantizeShape& shape) {
  launch(context, "quantising rows", quantize<format, gated, statistics>, shape.blocks,
         shape.row_threads * shape.block_rows, shape.shared_bytes, args, shape);
}

}  // namespace quads::kernels::cuda
