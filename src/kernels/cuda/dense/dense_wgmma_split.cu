// The dense product by wgmma (sm_90a only) where there are more multiprocessors than tiles: a
// cluster of four blocks takes a tile, each block a part of K.
//
// Two blocks of narrow tiles share a multiprocessor. With one, clusters of four do not fill a chip
// whose groups of multiprocessors are no multiples of four, and the last of them run alone; and one
// block's copies fill the time in which the other starts or ends. Wide tiles, for products with no
// more of them than such a chip has room for at a time, have a multiprocessor each.
#include <algorithm>

#include "kernels/cuda/dense/dense_parts.cuh"
#include "kernels/cuda/dense/dense_wgmma.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"

namespace quads::kernels::cuda {
namespace {

/// `warpgroups`: of 64 rows of x each; `columns`: rows of the weight.
template <int warpgroups, int columns>
struct SplitConfig {
  static constexpr int kRows = 64 * warpgroups;
  static constexpr int kColumns = columns;
  static constexpr int kWarps = 4 * warpgroups;  // that multiply; one more copies
  static constexpr int kThreads = (kWarps + 1) * 32;
  static constexpr int kBlocks = columns > 64 ? 1 : 2;  // a multiprocessor
  static constexpr int kXBytes = kRows * 128;           // of a stage
  static constexpr int kStageBytes = kXBytes + columns * 128;
  static constexpr int kStages = std::min(8, (kBlocks == 1 ? 222 : 108) * 1024 / kStageBytes);
  static constexpr int kSharedBytes = 2048 + kStages * kStageBytes;
  using Sums = PartSums<kRows, columns, kWarps * 32>;
  static_assert(2 * Sums::kBytes <= kStages * kStageBytes, "sums take the ring's place");
};

/// By one lane: this block's part of K.
template <class C>
__device__ void stream_part(const CUtensorMap* weight, const CUtensorMap* x, int row, int column,
                            const PartStages& stages, uint32_t ring, uint32_t barriers,
                            int tile_rows) {
  const auto copy_weight = [&](int stage, int slot) {
    barrier_expect(barriers + slot * 8, (C::kColumns + tile_rows) * 128);
    copy_box(ring + slot * C::kStageBytes + C::kXBytes, weight,
             (stages.first + stage) * kBoxColumns, column, barriers + slot * 8);
  };
  const int filled = min(stages.count, C::kStages);
  for (int stage = 0; stage < filled; ++stage) copy_weight(stage, stage);
  wait_for_previous_kernel();  // the weight is older
  for (int stage = 0; stage < stages.count; ++stage) {
    const int slot = stage % C::kStages;
    if (stage >= filled) {
      barrier_wait(barriers + (C::kStages + slot) * 8, (stage / C::kStages & 1) ^ 1);
      copy_weight(stage, slot);
    }
    copy_box(ring + slot * C::kStageBytes, x, (stages.first + stage) * kBoxColumns, row,
             barriers + slot * 8);
  }
}

template <int warpgroups, int columns>
__global__ void __cluster_dims__(kParts, 1, 1)
    __launch_bounds__(SplitConfig<warpgroups, columns>::kThreads,
                      SplitConfig<warpgroups, columns>::kBlocks)
        dense_wgmma_split(const __grid_constant__ CUtensorMap weight,
                          const __grid_constant__ CUtensorMap x,
                          const __grid_constant__ DenseArgs args) {
  using C = SplitConfig<warpgroups, columns>;
  extern __shared__ uint8_t shared[];
  const uint32_t barriers = shared_address(shared);
  const uint32_t ring = (barriers + 1024 + 1023) & ~1023U;
  const typename C::Sums sums_of_parts{ring};
  const uint32_t sums_arrived = barriers + 8 * 2 * C::kStages;
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, threadIdx.x >> 5, 0);
  const int part = static_cast<int>(cluster_rank());
  // Row tiles of one tile of the weight are neighbours: the second finds it in the L2 cache.
  const int tile = static_cast<int>(blockIdx.x) / kParts;
  const int row = tile % args.row_tiles * args.tile_rows;
  const int column = tile / args.row_tiles * columns;
  const PartStages stages(args, part);
  if (threadIdx.x == C::kWarps * 32) {
    prefetch_map(&weight);
    prefetch_map(&x);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(barriers + 8 * i, 1);
      barrier_init(barriers + 8 * (C::kStages + i), C::kWarps);
    }
    barrier_init(sums_arrived, 1);
    barrier_init_fence();
  }
  __syncthreads();
  float sums[columns / 2] = {};
  if (warp == C::kWarps) {
    if (lane == 0) {
      stream_part<C>(&weight, &x, row, column, stages, ring, barriers, args.tile_rows);
    }
  } else {
    wait_for_previous_kernel();
    let_next_kernel_start();
    Multiplier<C::kRows, columns, C::kStages, 1> multiplier{ring, barriers, lane, warp / 4, {}, 0};
    for (int stage = 0; stage < stages.count; ++stage) multiplier.start(sums, stage == 0);
    wgmma_wait_all();  // nothing follows for which the last stage would have to be released
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();  // no block reads its ring any more: sums take its place
  float4 residuals[C::Sums::kItems];
  if (warp < C::kWarps) {
    sums_of_parts.fetch(args, part, row, column, residuals);
    const uint32_t staging = ring + C::Sums::kBytes;
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) {
      const int r = warp * 16 + (lane >> 2);
      const int c = j * 8 + (lane & 3) * 2;
      sums_of_parts.stage(staging, part, r, c, sums[j * 4], sums[j * 4 + 1]);
      sums_of_parts.stage(staging, part, r + 8, c, sums[j * 4 + 2], sums[j * 4 + 3]);
    }
    async_fence();
    asm volatile("bar.sync 1, %0;" ::"n"(C::kWarps * 32) : "memory");
    if (threadIdx.x == 0) {
      sums_of_parts.send_staged(staging, part, args.tile_rows, sums_arrived);
    }
    barrier_wait(sums_arrived, 0);
  }
  __syncwarp();
  cluster_arrive();
  if (warp < C::kWarps) {
    sums_of_parts.add(args, reinterpret_cast<const float*>(shared + (ring - barriers)), part,
                      stages.parts, row, column, residuals);
  }
  cluster_wait();  // nothing is on its way from a block that has ended
}

template <int warpgroups, int columns>
void run(const CudaContext& context, const DenseGemm& gemm, DenseArgs args) {
  using C = SplitConfig<warpgroups, columns>;
  cut_rows(args, C::kRows);
  const CUtensorMap weight = tensor_map(gemm.weight, gemm.n, gemm.k, columns);
  const CUtensorMap x = tensor_map(gemm.x, gemm.rows, gemm.k, args.tile_rows);
  const int tiles = args.row_tiles * ((args.n + columns - 1) / columns);
  launch(context, "dense product", dense_wgmma_split<warpgroups, columns>, tiles * kParts,
         C::kThreads, C::kSharedBytes, weight, x, args);
}

}  // namespace

void launch_dense_wgmma_split(const CudaContext& context, const DenseGemm& gemm,
                              const DenseArgs& args, int tile_rows, int tile_n) {
  if (tile_rows == 64) return run<1, 64>(context, gemm, args);
  if (tile_n == 64) return run<2, 64>(context, gemm, args);
  run<2, 96>(context, gemm, args);
}

}  // namespace quads::kernels::cuda
