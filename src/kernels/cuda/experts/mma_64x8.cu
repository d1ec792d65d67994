// The grouped product for a few rows an expert, by mma.sync: a block takes a contiguous range of
// tiles of 64 rows of N; the activations of a segment (an expert, up to 8 rows) stay in shared
// memory for all of K, and every warpgroup streams tiles of its own, independent of the others.
#include <type_traits>

#include "kernels/cuda/experts/activation_image.h"
#include "kernels/cuda/experts/decode.cuh"
#include "kernels/cuda/experts/fragment_weights.h"
#include "kernels/cuda/experts/store.cuh"
#include "kernels/cuda/experts/units.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kWarpgroups = 4;
constexpr int kRing = 5;  // stages of a warpgroup's tile
constexpr int kConsumerWarps = kWarpgroups * 4;
constexpr int kThreads = (kConsumerWarps + kWarpgroups + 1) * 32;
constexpr int kRowBytes = 2 * kStageK * kImageGroup;  // of a segment in a stage

/// What the block's warps share. Barriers: a full and an empty one a stage of the rings, and two of
/// each for the slots of activations.
struct Shared {
  ExpertTable table;
  Unit segments[kMaxSegments];
  uint64_t ring_full[kWarpgroups][kRing];
  uint64_t ring_empty[kWarpgroups][kRing];
  uint64_t slot_full[2];
  uint64_t slot_empty[2];
  __align__(16) float row_scales[2][kImageGroup];  // of a slot's activations, if they are FP16
};

/// The block's tiles [begin, end) of all (segment, tile of N), and its segments.
struct Range {
  int begin, end, first_segment, segments;
};

__device__ Range range_of_block(int segments, int n_tiles) {
  const int64_t all = static_cast<int64_t>(segments) * n_tiles;
  Range range;
  range.begin = static_cast<int>(all * blockIdx.x / gridDim.x);
  range.end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
  range.first_segment = range.begin / n_tiles;
  range.segments =
      range.end > range.begin ? (range.end - 1) / n_tiles - range.first_segment + 1 : 0;
  return range;
}

__device__ void stream_weights(const GemmArgs& args, const Range& range, int n_tiles, int group,
                               uint32_t ring, Shared* shared) {
  const uint64_t policy = evict_first_policy();
  int slot = 0;
  uint32_t parity = 1;
  for (int t = range.begin + group; t < range.end; t += kWarpgroups) {
    const int segment = t / n_tiles - range.first_segment;
    const int n_tile = t - (range.first_segment + segment) * n_tiles;
    const uint8_t* source =
        args.weights + (shared->segments[segment].weight_tile + n_tile) * args.stages * kTileBytes;
    for (int stage = 0; stage < args.stages; ++stage, source += kTileBytes) {
      const uint32_t full = shared_address(&shared->ring_full[group][slot]);
      barrier_wait(shared_address(&shared->ring_empty[group][slot]), parity);
      barrier_expect(full, kTileBytes);
      bulk_copy(ring + slot * kTileBytes, source, kTileBytes, full, policy);
      if (++slot == kRing) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
}

template <bool fp16>
__device__ void stream_activations(const GemmArgs& args, const Range& range, uint32_t slots,
                                   int slot_bytes, Shared* shared) {
  wait_for_previous_kernel();
  for (int i = 0; i < range.segments; ++i) {
    const Unit unit = shared->segments[i];
    const uint32_t to = slots + (i & 1) * slot_bytes;
    const uint32_t full = shared_address(&shared->slot_full[i & 1]);
    barrier_wait(shared_address(&shared->slot_empty[i & 1]), (i >> 1 & 1) ^ 1);
    constexpr int kScaleBytes = fp16 ? kImageGroup * 4 : 0;
    barrier_expect(full, slot_bytes + kScaleBytes);
    if constexpr (fp16) {
      bulk_copy(shared_address(shared->row_scales[i & 1]),
                args.row_scales + unit.image_row + unit.image_first, kScaleBytes, full);
    }
    const auto copy = [&](const uint16_t* image, int stages, uint32_t at) {
      const uint16_t* first =
          image + (static_cast<int64_t>(unit.image_row) * stages + unit.image_first) * kStageK;
      if (unit.padded_rows == kImageGroup) {  // then all stages are contiguous
        if (stages > 0) bulk_copy(at, first, stages * kRowBytes, full);
        return;
      }
      for (int stage = 0; stage < stages; ++stage) {
        bulk_copy(at + stage * kRowBytes,
                  first + static_cast<int64_t>(stage) * unit.padded_rows * kStageK, kRowBytes,
                  full);
      }
    };
    copy(args.q1, args.stages, to);
    copy(args.q2, args.residual_stages, to + args.stages * kRowBytes);
  }
}

template <bool fp16, bool activated>
__device__ void multiply(const GemmArgs& args, const Range& range, int n_tiles, int warp, int lane,
                         uint32_t rings, uint32_t slots, int slot_bytes, Shared* shared) {
  const int group = warp >> 2;
  const uint32_t ring = rings + group * kRing * kTileBytes + (warp & 3) * kSliceBytes;
  int slot = 0;
  int released = 0;  // segments
  uint32_t parity = 0;
  const auto release_segments = [&](int to) {
    for (; released < to; ++released) {
      if (lane == 0) barrier_arrive(shared_address(&shared->slot_empty[released & 1]));
    }
  };
  for (int t = range.begin + group; t < range.end; t += kWarpgroups) {
    const int segment = t / n_tiles - range.first_segment;
    const int n_tile = t - (range.first_segment + segment) * n_tiles;
    release_segments(segment);
    const Unit unit = shared->segments[segment];
    barrier_wait(shared_address(&shared->slot_full[segment & 1]), segment >> 1 & 1);
    const int row = lane & 7;  // of 8 x 128 swizzled bytes, a panel of 64 k
    uint32_t x1 = slots + (segment & 1) * slot_bytes + row * 128 + (((lane >> 3) ^ row) << 4);
    uint32_t x2 = x1 + args.stages * kRowBytes;
    float sums[4] = {};
    float residual_sums[4] = {};
    const auto stage = [&](auto compensated) {
      constexpr bool kCompensated = decltype(compensated)::value;
      barrier_wait(shared_address(&shared->ring_full[group][slot]), parity);
      const uint32_t slice = ring + slot * kTileBytes;
      const uint4 codes[2] = {load_shared_16(slice + lane * 16),
                              load_shared_16(slice + 512 + lane * 16)};
      const uint4 scales = load_shared_16(slice + 1024 + (lane >> 2) * 16);
      const uint32_t scale_words[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
      for (int q = 0; q < 4; ++q) {  // k32
        uint32_t b1[4], b2[4], a0[4], a1[4];
        load_matrices(b1, (x1 ^ (q & 1) * 64) + (q >> 1) * 1024);
        if constexpr (kCompensated) load_matrices(b2, (x2 ^ (q & 1) * 64) + (q >> 1) * 1024);
        const uint4& words = codes[q >> 1];
        const uint32_t first = q & 1 ? words.z : words.x;
        const uint32_t second = q & 1 ? words.w : words.y;
        if constexpr (fp16) {
          decode_blocks_fp16(first, second, scale_words[q], a0, a1);
        } else {
          decode_blocks(first, second, scale_words[q], a0, a1);
        }
        mma_16x8x16<fp16>(sums, a0, b1[0], b1[1]);
        if constexpr (kCompensated) mma_16x8x16(residual_sums, a0, b2[0], b2[1]);
        mma_16x8x16<fp16>(sums, a1, b1[2], b1[3]);
        if constexpr (kCompensated) mma_16x8x16(residual_sums, a1, b2[2], b2[3]);
        if (q == 1) {  // the stage is in registers
          __syncwarp();
          if (lane == 0) barrier_arrive(shared_address(&shared->ring_empty[group][slot]));
        }
      }
      x1 += kRowBytes;
      if constexpr (kCompensated) x2 += kRowBytes;
      if (++slot == kRing) {
        slot = 0;
        parity ^= 1;
      }
    };
    int i = 0;
    if constexpr (!fp16) {
      for (; i < args.residual_stages; ++i) stage(std::true_type{});
    }
    for (; i < args.stages; ++i) stage(std::false_type{});
    if constexpr (fp16) {
      scale_sums(shared->row_scales[segment & 1], lane, sums);
    } else if (args.residual_stages > 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[j] += residual_sums[j];
    }
    const int n_row = n_tile * kTileRows + (warp & 3) * 16;
    if constexpr (activated) {
      store_activated<1, false>(sums, n_row, lane, unit, args);
    } else {
      store_sums<1, false>(sums, n_row, lane, unit, args);
    }
  }
  release_segments(range.segments);
}

template <bool fp16, bool activated>
__global__ void __launch_bounds__(kThreads, 1) gemm_64x8(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) uint8_t dynamic[];
  __shared__ Shared shared;
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, threadIdx.x >> 5, 0);
  const int slot_bytes = (args.stages + args.residual_stages) * kRowBytes;
  const uint32_t slots = (shared_address(dynamic) + 1023) & ~1023U;
  const uint32_t rings = slots + 2 * slot_bytes;
  let_next_kernel_start();
  if (threadIdx.x == 32) {
    for (int group = 0; group < kWarpgroups; ++group) {
      for (int i = 0; i < kRing; ++i) {
        barrier_init(shared_address(&shared.ring_full[group][i]), 1);
        barrier_init(shared_address(&shared.ring_empty[group][i]), 4);
      }
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&shared.slot_full[i]), 1);
      barrier_init(shared_address(&shared.slot_empty[i]), kConsumerWarps);
    }
    barrier_init_fence();
  }
  if (args.global_scales != nullptr) prefetch_l2(args.global_scales, args.experts * 4);
  fill_expert_table(args.expert_offsets, args.experts, kImageGroup, &shared.table);
  const int n_tiles = args.n / kTileRows;
  const Range range = range_of_block(shared.table.tiles[args.experts], n_tiles);
  if (threadIdx.x < range.segments && threadIdx.x < kMaxSegments) {
    shared.segments[threadIdx.x] =
        find_unit(shared.table, args, range.first_segment + static_cast<int>(threadIdx.x), 0);
  }
  __syncthreads();
  if (warp < kConsumerWarps) {
    multiply<fp16, activated>(args, range, n_tiles, warp, lane, rings, slots, slot_bytes, &shared);
  } else if (lane == 0) {
    const int group = warp - kConsumerWarps;
    if (group < kWarpgroups) {
      stream_weights(args, range, n_tiles, group, rings + group * kRing * kTileBytes, &shared);
    } else {
      stream_activations<fp16>(args, range, slots, slot_bytes, &shared);
    }
  }
}

int dynamic_bytes(const GemmArgs& args) {
  return 1024 + kWarpgroups * kRing * kTileBytes +
         2 * (args.stages + args.residual_stages) * kRowBytes;
}

}  // namespace

int shared_bytes_mma_64x8(const GemmArgs& args) {
  return dynamic_bytes(args) + static_cast<int>(sizeof(Shared));
}

void launch_mma_64x8(const CudaContext& context, const GemmArgs& args) {
  const auto run = [&](auto* kernel) {
    launch(context, "mma 64x8", kernel, context.multiprocessors, kThreads, dynamic_bytes(args),
           args);
  };
  const bool activated = args.output == GemmOutput::kSilu;
  if (args.row_scales == nullptr) {
    return activated ? run(gemm_64x8<false, true>) : run(gemm_64x8<false, false>);
  }
  activated ? run(gemm_64x8<true, true>) : run(gemm_64x8<true, false>);
}

}  // namespace quads::kernels::cuda
