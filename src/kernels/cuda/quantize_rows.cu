// The row quantiser: a thread a block of 16, a few warps a row.
#include "kernels/cuda/fragment_weights.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize_block.cuh"
#include "kernels/cuda/quantize_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kBlock = 16;
constexpr uint32_t kBf16Infinity = 0x7F80;

/// A block's values to the row's buffer, as BF16 (they are exact), two 16-byte chunks.
__device__ __forceinline__ void put_block(uint4* row, int position, const float q[16]) {
  uint32_t words[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    words[i] = __byte_perm(__float_as_uint(q[2 * i]), __float_as_uint(q[2 * i + 1]), 0x7632);
  }
  row[position * 2] = make_uint4(words[0], words[1], words[2], words[3]);
  row[position * 2 + 1] = make_uint4(words[4], words[5], words[6], words[7]);
}

__device__ __forceinline__ void load_block(const uint16_t* x, float values[16], uint32_t* amax) {
  const uint4 low = *reinterpret_cast<const uint4*>(x);
  const uint4 high = *reinterpret_cast<const uint4*>(x + 8);
  const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    largest = __vmaxu2(largest, words[i] & 0x7FFF7FFFU);
  }
  *amax = max(largest & 0xFFFFU, largest >> 16);
}

__device__ __forceinline__ float amax_of(const float x[16]) {
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) amax = fmaxf(amax, fabsf(x[i]));
  return amax;
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

__global__ void __launch_bounds__(1024) quantize(const __grid_constant__ QuantizeRows args,
                                                 const __grid_constant__ QuantizeShape shape) {
  extern __shared__ __align__(16) uint4 buffers[];
  __shared__ uint32_t row_amax[32];
  const int chunks1 = shape.stages * 16;
  const int chunks2 = shape.residual_stages * 16;
  const int local_row = threadIdx.x / shape.row_threads;
  const int block = threadIdx.x - local_row * shape.row_threads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * shape.block_rows + local_row;
  uint4* row1 = buffers + local_row * (chunks1 + chunks2);
  uint4* row2 = row1 + chunks1;
  const int blocks = static_cast<int>(args.k / kBlock);
  const bool live = row < args.rows;
  const bool in_row = live && block < blocks;
  int position = block;
  if (in_row && args.block_position != nullptr) position = args.block_position[block];
  if (threadIdx.x < 32) row_amax[threadIdx.x] = 0;
  wait_for_previous_kernel();
  let_next_kernel_start();
  __syncthreads();

  float x[16] = {};
  uint32_t amax = 0;
  if (in_row) {
    const auto* source = reinterpret_cast<const uint16_t*>(args.x) + row * args.ldx;
    load_block(source + block * kBlock, x, &amax);
  }
  const uint32_t warp_amax = __reduce_max_sync(~0U, amax);
  if (threadIdx.x % 32 == 0) atomicMax(&row_amax[local_row], warp_amax);
  __syncthreads();

  if (live && position < shape.stages * 8) {
    const uint32_t whole = row_amax[local_row];
    const float g = global_scale_of(whole);
    const float inverse_g = 1.0F / g;  // exact
    float q[16];
    const float s1 = e4m3_scale(__uint_as_float(amax << 16), inverse_g);
    quantize_values(x, s1 * g, q);
    bool bad = whole >= kBf16Infinity;
    if (bad) {  // never laundered: the row's products are NaN
#pragma unroll
      for (int i = 0; i < 16; ++i) q[i] = __uint_as_float(0x7FC00000U);
    } else if (whole >= 0x7F00U) {
      bad = !(amax_of(q) < __uint_as_float(0x7F800000U));
    }
    if (bad && in_row) atomicMin(args.first_bad_row, static_cast<int32_t>(row));
    put_block(row1, position, q);
    if (position < shape.residual_stages * 8) {
      const bool compensated = in_row && position < args.residual_blocks;
#pragma unroll
      for (int i = 0; i < 16; ++i) x[i] = compensated ? x[i] - q[i] : 0.0F;
      if (compensated && args.channel_mask != nullptr) {
        mask_residual(args.channel_mask + block * kBlock, x);
      }
      float s2 = e4m3_scale(amax_of(x), inverse_g);
      if (args.scale_floor) s2 = fmaxf(s2, residual_scale_floor(s1));
      quantize_values(x, s2 * g, q);
      put_block(row2, position, q);
    }
  }
  __syncthreads();

  if (!live) return;
  for (int copy = 0; copy < args.copies; ++copy) {
    const ImageRow place = args.image_rows[row * args.copies + copy];
    if (place.index < 0) continue;
    copy_row(row1, place, shape.stages, block, shape.row_threads,
             reinterpret_cast<uint16_t*>(args.q1));
    copy_row(row2, place, shape.residual_stages, block, shape.row_threads,
             reinterpret_cast<uint16_t*>(args.q2));
  }
}

}  // namespace

void launch_quantize_rows(const CudaContext& context, const QuantizeRows& args,
                          const QuantizeShape& shape) {
  const int blocks = static_cast<int>((args.rows + shape.block_rows - 1) / shape.block_rows);
  const int shared = shape.block_rows * (shape.stages + shape.residual_stages) * 256;
  launch(context, "quantising rows", quantize, blocks, shape.row_threads * shape.block_rows, shared,
         args, shape);
}

}  // namespace quads::kernels::cuda
