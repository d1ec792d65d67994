// The dense product by wgmma (sm_90a only) where there are more multiprocessors than tiles: a
// cluster of four blocks takes a tile, each block a part of K.
#include <algorithm>

#include "kernels/cuda/dense_parts.cuh"
#include "kernels/cuda/dense_wgmma.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kColumns = 64;

struct SplitConfig {
  static constexpr int kStageBytes = kXBytes + kColumns * 128;
  using Sums = PartSums<kWgmmaRows, kColumns>;
  static constexpr int kStages = std::min(8, (220 * 1024 - Sums::kBytes) / kStageBytes);
  static constexpr int kSharedBytes = 2048 + kStages * kStageBytes + Sums::kBytes;
};

__global__ void __cluster_dims__(kParts, 1, 1) __launch_bounds__(kWgmmaThreads, 1)
    dense_wgmma_split(const __grid_constant__ CUtensorMap weight,
                      const __grid_constant__ CUtensorMap x, const __grid_constant__ DenseArgs args,
                      int row_tiles) {
  using C = SplitConfig;
  extern __shared__ uint8_t shared[];
  const uint32_t barriers = shared_address(shared);
  const uint32_t ring = (barriers + 1024 + 1023) & ~1023U;
  const C::Sums sums_of_parts{ring + C::kStages * C::kStageBytes};
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, threadIdx.x >> 5, 0);
  const int part = static_cast<int>(cluster_rank());
  const int tile = static_cast<int>(blockIdx.x) / kParts;
  const int row = tile % row_tiles * kWgmmaRows;
  const int column = tile / row_tiles * kColumns;
  const PartStages stages(args, part);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(barriers + 8 * i, 1);
      barrier_init(barriers + 8 * (C::kStages + i), kWarpgroups * 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  cluster_arrive();
  if (warp >= kWarpgroups * 4) {
    if (warp == kWarpgroups * 4 && lane == 0) {
      const auto copy_weight = [&](int stage, int slot) {
        barrier_expect(barriers + slot * 8, C::kStageBytes);
        copy_box(ring + slot * C::kStageBytes + kXBytes, &weight,
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
        copy_box(ring + slot * C::kStageBytes, &x, (stages.first + stage) * kBoxColumns, row,
                 barriers + slot * 8);
      }
    }
    __syncwarp();
    cluster_wait();
  } else {
    wait_for_previous_kernel();
    let_next_kernel_start();
    Multiplier<kColumns, C::kStages, 1> multiplier{ring, barriers, lane, warp / 4, {}, 0};
    float sums[kColumns / 2] = {};
    for (int stage = 0; stage < stages.count; ++stage) multiplier.start(sums, stage == 0);
    wgmma_wait_all();  // nothing follows for which the last stage would have to be released
    __syncwarp();
    cluster_wait();  // all blocks of the cluster are there
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int r = warp * 16 + (lane >> 2);
      const int c = j * 8 + (lane & 3) * 2;
      sums_of_parts.send(part, r, c, sums[j * 4], sums[j * 4 + 1]);
      sums_of_parts.send(part, r + 8, c, sums[j * 4 + 2], sums[j * 4 + 3]);
    }
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  if (warp >= kWarpgroups * 4) return;
  sums_of_parts.add(args,
                    reinterpret_cast<const float*>(shared + (sums_of_parts.address - barriers)),
                    part, stages.parts, row, column, kWarpgroups * 128);
}

}  // namespace

void launch_dense_wgmma_split(const CudaContext& context, const DenseGemm& gemm,
                              const DenseArgs& args) {
  using C = SplitConfig;
  const CUtensorMap weight = tensor_map(gemm.weight, gemm.n, gemm.k, kColumns);
  const CUtensorMap x = tensor_map(gemm.x, gemm.rows, gemm.k, kWgmmaRows);
  const int row_tiles = (args.rows + kWgmmaRows - 1) / kWgmmaRows;
  const int tiles = row_tiles * ((args.n + kColumns - 1) / kColumns);
  launch(context, "dense product", dense_wgmma_split, tiles * kParts, kWgmmaThreads,
         C::kSharedBytes, weight, x, args, row_tiles);
}

}  // namespace quads::kernels::cuda
