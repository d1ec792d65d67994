// The dense product for few rows, where reading the weight is the limit: a cluster of four blocks
// takes a tile, each block a part of K, by mma.sync; then each adds a fourth of the tile's columns
// over the parts.
#include <algorithm>

#include "kernels/cuda/dense/dense_parts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kWarps = 4;  // that multiply; one more copies
constexpr int kThreads = (kWarps + 1) * 32;

/// `m_tiles`: of 16 rows of x; `n_tiles`: of 8 rows of the weight, a warp.
template <int m_tiles, int n_tiles>
struct ClusterConfig {
  static constexpr int kRows = 16 * m_tiles;
  static constexpr int kColumns = kWarps * n_tiles * 8;
  static constexpr int kWeightBytes = kColumns * 128;  // of a stage of 64 k
  static constexpr int kStageBytes = kWeightBytes + kRows * 128;
  using Sums = PartSums<kRows, kColumns, kWarps * 32>;
  // Two blocks share a multiprocessor, so that one copies while the other starts or ends.
  static constexpr int kBlocks = m_tiles == 4 ? 1 : 2;
  static constexpr int kMaxStages = 16;
  static constexpr int kMaxBytes = (kBlocks == 1 ? 222 : 112) * 1024;
  static constexpr int kFixedBytes = 2048 + Sums::kBytes;  // barriers and the ring's alignment
};

template <class C>
__device__ void stream_part(const CUtensorMap* weight, const CUtensorMap* x, int row, int column,
                            int first_stage, int stages, uint32_t ring, int ring_stages,
                            uint32_t barriers, int tile_rows) {
  const uint64_t policy = evict_first_policy();
  const auto copy_weight = [&](int stage, int slot) {
    barrier_expect(barriers + slot * 8, C::kWeightBytes + tile_rows * 128);
    copy_box(ring + slot * C::kStageBytes, weight, (first_stage + stage) * kBoxColumns, column,
             barriers + slot * 8, policy);
  };
  const auto copy_x = [&](int stage, int slot) {
    copy_box(ring + slot * C::kStageBytes + C::kWeightBytes, x, (first_stage + stage) * kBoxColumns,
             row, barriers + slot * 8);
  };
  const int filled = min(stages, ring_stages);
  for (int stage = 0; stage < filled; ++stage) copy_weight(stage, stage);
  wait_for_previous_kernel();  // the weight is older
  for (int stage = 0; stage < filled; ++stage) copy_x(stage, stage);
  for (int stage = filled; stage < stages; ++stage) {
    const int slot = stage % ring_stages;
    barrier_wait(barriers + (C::kMaxStages + slot) * 8, (stage / ring_stages & 1) ^ 1);
    copy_weight(stage, slot);
    copy_x(stage, slot);
  }
}

/// A stage of a warp's tiles: all fragments of 32 k, then their products, which do not wait for
/// each other. Lane l of a load of matrices gives a row of matrix l / 8.
template <class C, int m_tiles, int n_tiles>
__device__ __forceinline__ void multiply_stage(uint32_t stage, int warp, int lane,
                                               float (&sums)[m_tiles][n_tiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t a[m_tiles][2][4];
    uint32_t b[n_tiles][4];
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
      load_matrices(
          b[n], box_chunk(stage, (warp * n_tiles + n) * 8 + (lane & 7), half * 4 + (lane >> 3)));
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
        load_matrices(a[m][step], box_chunk(stage + C::kWeightBytes, m * 16 + (lane & 15),
                                            half * 4 + step * 2 + (lane >> 4)));
      }
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
        for (int m = 0; m < m_tiles; ++m) {
          mma_16x8x16(sums[m][n], a[m][step], b[n][step * 2], b[n][step * 2 + 1]);
        }
      }
    }
  }
}

template <int m_tiles, int n_tiles>
__global__ void __cluster_dims__(kParts, 1, 1)
    __launch_bounds__(kThreads, ClusterConfig<m_tiles, n_tiles>::kBlocks)
        dense_cluster(const __grid_constant__ CUtensorMap weight,
                      const __grid_constant__ CUtensorMap x, const __grid_constant__ DenseArgs args,
                      int ring_stages) {
  using C = ClusterConfig<m_tiles, n_tiles>;
  extern __shared__ uint8_t shared[];
  const uint32_t barriers = shared_address(shared);
  const uint32_t ring = (barriers + 1024 + 1023) & ~1023U;
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, threadIdx.x >> 5, 0);
  const int part = static_cast<int>(cluster_rank());
  // Row tiles of one tile of the weight are neighbours: the second finds it in the L2 cache.
  const int tile = static_cast<int>(blockIdx.x) / kParts;
  const int row = tile % args.row_tiles * args.tile_rows;
  const int column = tile / args.row_tiles * C::kColumns;
  const PartStages stages(args, part);
  const typename C::Sums sums_of_parts{ring + ring_stages * C::kStageBytes};

  if (threadIdx.x == kWarps * 32) {
    prefetch_map(&weight);
    prefetch_map(&x);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kMaxStages; ++i) {
      barrier_init(barriers + 8 * i, 1);
      barrier_init(barriers + 8 * (C::kMaxStages + i), kWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  cluster_arrive();
  float4 residuals[C::Sums::kItems];
  if (warp == kWarps) {
    if (lane == 0) {
      stream_part<C>(&weight, &x, row, column, stages.first, stages.count, ring, ring_stages,
                     barriers, args.tile_rows);
    }
    __syncwarp();
    cluster_wait();
  } else {
    wait_for_previous_kernel();
    let_next_kernel_start();
    float sums[m_tiles][n_tiles][4] = {};
    for (int stage = 0; stage < stages.count; ++stage) {
      const int slot = stage % ring_stages;
      barrier_wait(barriers + slot * 8, stage / ring_stages & 1);
      multiply_stage<C>(ring + slot * C::kStageBytes, warp, lane, sums);
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers + (C::kMaxStages + slot) * 8);
    }
    sums_of_parts.fetch(args, part, row, column, residuals);
    __syncwarp();
    cluster_wait();  // all blocks of the cluster are there
    const int r = lane >> 2;
    const int c = warp * n_tiles * 8 + (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) {
        const float* d = sums[m][n];
        sums_of_parts.send(part, m * 16 + r, c + n * 8, d[0], d[1]);
        sums_of_parts.send(part, m * 16 + r + 8, c + n * 8, d[2], d[3]);
      }
    }
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  if (warp == kWarps) return;
  sums_of_parts.add(args,
                    reinterpret_cast<const float*>(shared + (sums_of_parts.address - barriers)),
                    part, stages.parts, row, column, residuals);
}

template <int m_tiles, int n_tiles>
void run(const CudaContext& context, const DenseGemm& gemm, DenseArgs args) {
  using C = ClusterConfig<m_tiles, n_tiles>;
  const CUtensorMap weight = tensor_map(gemm.weight, gemm.n, gemm.k, C::kColumns);
  cut_rows(args, C::kRows);
  const CUtensorMap x = tensor_map(gemm.x, gemm.rows, gemm.k, args.tile_rows);
  const int tiles = args.row_tiles * ((args.n + C::kColumns - 1) / C::kColumns);
  const int room = std::min(C::kMaxBytes, context.shared_bytes) - C::kFixedBytes;
  const int stages = std::clamp(room / C::kStageBytes, 1, C::kMaxStages);
  const int bytes = C::kFixedBytes + stages * C::kStageBytes;
  launch(context, "dense product", dense_cluster<m_tiles, n_tiles>, tiles * kParts, kThreads, bytes,
         weight, x, args, stages);
}

template <int m_tiles>
void run_any(const CudaContext& context, const DenseGemm& gemm, const DenseArgs& args) {
  // Narrow tiles where wide ones would leave multiprocessors idle at the end.
  const int64_t at_once = context.multiprocessors / kParts;
  const auto cost = [&](int64_t n_tiles) {
    const int64_t columns = kWarps * n_tiles * 8;
    const int64_t tiles = (args.n + columns - 1) / columns;
    return (tiles + at_once - 1) / at_once * n_tiles;
  };
  int best = 1;
  for (const int n_tiles : {2, 5}) {
    if (cost(n_tiles) * 20 <= cost(best) * 21) best = n_tiles;
  }
  if (best == 1) return run<m_tiles, 1>(context, gemm, args);
  if (best == 2) return run<m_tiles, 2>(context, gemm, args);
  run<m_tiles, 5>(context, gemm, args);
}

}  // namespace

void launch_dense_cluster(const CudaContext& context, const DenseGemm& gemm, const DenseArgs& args,
                          int tile_rows) {
  if (tile_rows == 16) return run_any<1>(context, gemm, args);
  if (tile_rows == 32) return run_any<2>(context, gemm, args);
  run_any<4>(context, gemm, args);
}

}  // namespace quads::kernels::cuda
