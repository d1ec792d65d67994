// Activations: a block of threads a row, a thread a block of 16 at a time, twice: for the row's
// largest magnitude and for its codes.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize/quantize_block.cuh"
#include "kernels/native_fp4/layout.h"
#include "kernels/native_fp4/pack_launch.h"

namespace quads::kernels::native_fp4 {
namespace {

constexpr int kMaxThreads = 256;
constexpr uint32_t kBf16Infinity = 0x7F80;

// What is known of a row once all threads have looked.
struct RowFacts {
  uint32_t amax;        // BF16 bits
  uint32_t group_end;   // of the last group that ends at or before the row: where its group begins
  uint32_t scale_rows;  // of all such groups
};

// Over a block of threads; every thread has the result.
__device__ RowFacts combine(RowFacts mine) {
  __shared__ RowFacts of_warps[kMaxThreads / 32];
  mine.amax = __reduce_max_sync(~0U, mine.amax);
  mine.group_end = __reduce_max_sync(~0U, mine.group_end);
  mine.scale_rows = __reduce_add_sync(~0U, mine.scale_rows);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
  __syncthreads();
  RowFacts all = of_warps[0];
  for (int warp = 1; warp < blockDim.x / 32; ++warp) {
    all.amax = max(all.amax, of_warps[warp].amax);
    all.group_end = max(all.group_end, of_warps[warp].group_end);
    all.scale_rows += of_warps[warp].scale_rows;
  }
  return all;
}

// The codes of 16 values under the E4M3 value `scale` and g.
__device__ __forceinline__ uint2 codes_of(const float x[16], float scale, float g) {
  uint32_t codes[2] = {0, 0};
  if (scale != 0.0F) {
    const float reciprocal = __fdiv_rn(1.0F, scale * g);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      codes[i / 8] |= cuda::e2m1_code(x[i], reciprocal) << (i % 8 * 4);
    }
  }
  return make_uint2(codes[0], codes[1]);
}

__global__ void __launch_bounds__(kMaxThreads) pack_rows_kernel(PackRows args, PackedShape shape) {
  cuda::wait_for_previous_kernel();
  const int64_t row = blockIdx.x;
  const auto* x = reinterpret_cast<const uint16_t*>(args.x) + row * args.k;
  const int blocks = static_cast<int>(args.k / kBlock);
  RowFacts facts = {0, 0, 0};
  uint32_t words[8];
  float values[16];
  for (int block = threadIdx.x; block < blocks; block += blockDim.x) {
    cuda::load_block(x + block * kBlock, words);
    facts.amax = max(facts.amax, cuda::unpack_block(words, values));
  }
  for (int group = threadIdx.x; group < args.groups; group += blockDim.x) {
    const int32_t end = args.offsets[group];
    const int32_t begin = group == 0 ? 0 : args.offsets[group - 1];
    if (end > row) continue;
    facts.group_end = max(facts.group_end, static_cast<uint32_t>(end));
    facts.scale_rows += static_cast<uint32_t>(round_up(end - begin, kTileRows));
  }
  facts = combine(facts);
  const float g = cuda::power_of_two_scale(min(facts.amax, kBf16Infinity - 1), cuda::kNvfp4MaxBits);
  const float inverse_g = __fdiv_rn(1.0F, g);
  bool bad = facts.amax >= kBf16Infinity;
  uint8_t* scales = args.scales + facts.scale_rows * shape.columns;
  auto* codes = reinterpret_cast<uint2*>(args.codes) + row * (shape.k / kBlock);
  const int64_t row_of_group = row - facts.group_end;

  for (int block = threadIdx.x; block < blocks; block += blockDim.x) {
    cuda::load_block(x + block * kBlock, words);
    const uint32_t largest = cuda::unpack_block(words, values);
    const float s1 = cuda::e4m3_scale(__uint_as_float(largest << 16), inverse_g);
    codes[block] = codes_of(values, s1, g);
    scales[scale_offset(row_of_group, block, shape.columns)] =
        static_cast<uint8_t>(cuda::e4m3_code(s1));
    float q[16];
    cuda::quantize_values(values, s1 * g, q);
    bad |= !(cuda::amax_of(q) < __uint_as_float(0x7F800000U));
    const int place = args.place == nullptr ? -1 : args.place[block];
    if (place < 0) continue;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const bool kept = args.channel_mask == nullptr || args.channel_mask[block * kBlock + i] != 0;
      values[i] = kept ? values[i] - q[i] : 0.0F;
    }
    const float s2 = cuda::e4m3_scale(cuda::amax_of(values), inverse_g);
    codes[blocks + place] = codes_of(values, s2, g);
    scales[scale_offset(row_of_group, blocks + place, shape.columns)] =
        static_cast<uint8_t>(cuda::e4m3_code(s2));
  }
  if (threadIdx.x == 0) args.row_scales[row] = g;
  if (bad) atomicMin(args.first_bad_row, static_cast<int32_t>(row));
  cuda::let_next_kernel_start();
}

void clear(const CudaContext& context, void* bytes, int64_t size) {
  cuda::check_cuda(cudaMemsetAsync(bytes, 0, static_cast<size_t>(size), context.stream),
                   "clearing native FP4 operands");
}

}  // namespace

void launch_pack_rows(const CudaContext& context, const PackRows& args, const PackedShape& shape) {
  clear(context, args.codes, args.rows * shape.k / 2);
  clear(context, args.scales, scale_rows_bound(args.rows, args.groups) * shape.columns);
  const int64_t threads = round_up(args.k / kBlock, 32);
  cuda::launch(context, "packing native FP4 rows", pack_rows_kernel, static_cast<int>(args.rows),
               static_cast<int>(threads < kMaxThreads ? threads : kMaxThreads), 0, args, shape);
}

}  // namespace quads::kernels::native_fp4
