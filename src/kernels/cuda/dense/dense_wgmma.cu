// The dense product for many rows by wgmma (sm_90a only): a persistent grid, a warp that copies and
// two warpgroups that multiply, 64 rows of x each. Pairs of blocks take neighbouring rows and bring
// each other half of the weight's tile.
#include <algorithm>

#include "kernels/cuda/dense/dense_store.cuh"
#include "kernels/cuda/dense/dense_wgmma.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/store_block.cuh"
#include "kernels/cuda/tensor_map.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kWarpgroups = 2;
constexpr int kThreads = (kWarpgroups + 1) * 128;  // the last warpgroup copies
constexpr int kXBytes = kRows * 128;               // of a stage

// Sums on their way to y.
constexpr int kStoreBytes = kWarpgroups * 4 * kStoreBytesOfWarp;

/// `columns`: rows of the weight.
template <int columns>
struct WgmmaConfig {
  static constexpr int kStageBytes = kXBytes + columns * 128;
  static constexpr int kStages = std::min(8, 204 * 1024 / kStageBytes);
  static constexpr int kSharedBytes = 2048 + kStages * kStageBytes + kStoreBytes;
};

/// Tiles in bands of rows, so that what runs at a time shares rows of x and of the weight.
struct TileOrder {
  static constexpr int kBand = 16;  // row tiles, a multiple of a cluster's
  int row_tiles, n_tiles;

  __device__ int tiles() const { return row_tiles * n_tiles; }
  __device__ void find(int tile, int* row_tile, int* n_tile) const {
    const int band = tile / (kBand * n_tiles);
    const int height = min(kBand, row_tiles - band * kBand);
    const int in_band = tile - band * kBand * n_tiles;
    *n_tile = in_band / height;
    *row_tile = band * kBand + in_band % height;
  }
};

/// By a warp: asks the L2 cache for what is added to 16 rows from `row` on of `columns` columns,
/// lines of 32. Registers to hold it from an early load are not there.
template <int columns>
__device__ __forceinline__ void prefetch_residual(const DenseArgs& args, int end, int row,
                                                  int column) {
  if (args.residual == nullptr) return;
  for (int i = static_cast<int>(threadIdx.x) & 31; i < 16 * columns / 32; i += 32) {
    const int c = column + i / 16 * 32;
    if (row + i % 16 >= end || c >= args.n) continue;
    const float* line = args.residual + int64_t{row + i % 16} * args.n + c;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
  }
}

/// Of a product without bias in FP32 of which four neighbours are always there, and aligned, and
/// to whose y nothing is added but what it holds: the code of all other stores is long, and stands
/// in kernels of its own.
bool stores_simply(const DenseArgs& args) {
  return args.n % 4 == 0 && args.bias == nullptr && !args.y_is_bf16 &&
         (args.residual == nullptr || args.residual == args.y);
}

/// By a warp: 16 rows from `row` on, those before `end`, of 32 columns from `column` on; sums: of
/// four steps of 8 columns.
template <bool simple>
__device__ __forceinline__ void store_block(const DenseArgs& args, int end, int row, int column,
                                            const float* sums, float* buffer) {
  const int lane = threadIdx.x & 31;
  stage_block(sums, buffer);
  column += (lane & 7) * 4;
  row += lane >> 3;
  const float* from = buffer + (lane >> 3) * kStoreStride + (lane & 7) * 4;
  if constexpr (simple) {
    if (column >= args.n) return;
    float* y = static_cast<float*>(args.y) + static_cast<int64_t>(row) * args.n + column;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row + i * 4 >= end) return;
      const float4 four = *reinterpret_cast<const float4*>(from + i * 4 * kStoreStride);
      float* at = y + static_cast<int64_t>(i * 4) * args.n;
      if (args.residual != nullptr) {
        add_in_place(at, four);
      } else {
        *reinterpret_cast<float4*>(at) = four;
      }
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      if (row + i * 4 >= end) return;
      store_dense(args, row + i * 4, column,
                  *reinterpret_cast<const float4*>(from + i * 4 * kStoreStride),
                  load_residual(args, row + i * 4, column));
    }
  }
}

template <int columns, int blocks, bool simple>
__global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(kThreads, 1)
    dense_wgmma(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ DenseArgs args) {
  using C = WgmmaConfig<columns>;
  extern __shared__ uint8_t shared[];
  const uint32_t barriers = shared_address(shared);
  const uint32_t ring = (barriers + 1024 + 1023) & ~1023U;
  const uint32_t empty = barriers + 8 * C::kStages;
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, threadIdx.x >> 5, 0);
  if (threadIdx.x == kWarpgroups * 128) {
    prefetch_map(&weight);
    prefetch_map(&x);
  }
  const int warpgroups = (args.tile_rows + 63) / 64;  // that have rows
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(barriers + 8 * i, 1);
      barrier_init(empty + 8 * i, blocks * warpgroups * 4);
    }
    barrier_init_fence();
  }
  if constexpr (blocks == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
  // The warp that copies waits when it comes to x: the weight is older.
  const bool copies = warp == kWarpgroups * 4;
  if (!copies || args.row_count != nullptr) wait_for_previous_kernel();
  if (!copies) let_next_kernel_start();
  const int rows = dense_rows(args);
  TileOrder order;
  const int together = args.tile_rows * blocks;
  order.row_tiles = (rows + together - 1) / together * blocks;
  order.n_tiles = (args.n + columns - 1) / columns;

  if (warp >= kWarpgroups * 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (copies && lane == 0) {
      constexpr int kShare = columns / blocks;
      const int rank = blocks == 1 ? 0 : static_cast<int>(cluster_rank());
      const auto copy_weight = [&](int stage, int n_tile, int slot) {
        const uint32_t full = barriers + slot * 8;
        const uint32_t to = ring + slot * C::kStageBytes + kXBytes;
        barrier_expect(full, (columns + args.tile_rows) * 128);
        if constexpr (blocks == 1) {
          copy_box(to, &weight, stage * kBoxColumns, n_tile * columns, full);
        } else {
          copy_box_to_all(to + rank * kShare * 128, &weight, stage * kBoxColumns,
                          n_tile * columns + rank * kShare, full, (1 << blocks) - 1);
        }
      };
      RingPlace<C::kStages> place;
      int early = 0;  // stages of the first tile whose weight is on its way
      for (int tile = blockIdx.x; tile < order.tiles(); tile += gridDim.x) {
        int row_tile, n_tile;
        order.find(tile, &row_tile, &n_tile);
        if (tile == static_cast<int>(blockIdx.x)) {
          for (; early < min(C::kStages, args.stages); ++early) copy_weight(early, n_tile, early);
          wait_for_previous_kernel();
        }
        for (int stage = 0; stage < args.stages; ++stage, place.advance()) {
          if (early > 0) {
            --early;
          } else {
            barrier_wait(empty + place.slot * 8, place.parity ^ 1);
            copy_weight(stage, n_tile, place.slot);
          }
          copy_box(ring + place.slot * C::kStageBytes, &x, stage * kBoxColumns,
                   row_tile * args.tile_rows, barriers + place.slot * 8);
        }
      }
    }
  } else if (warp < warpgroups * 4) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    auto* buffer =
        reinterpret_cast<float*>(shared + (ring - barriers) + C::kStages * C::kStageBytes) +
        warp * 16 * kStoreStride;
    Multiplier<kRows, columns, C::kStages, blocks> multiplier{ring,     barriers, lane,
                                                              warp / 4, {},       0};
    float total[columns / 2];
    float sums[columns / 2];
    int row = 0;      // of the tile whose total is still to be stored
    int end_row = 0;  // behind its last row: there is none
    int column = 0;
    for (int tile = blockIdx.x; tile < order.tiles(); tile += gridDim.x) {
      int row_tile, n_tile;
      order.find(tile, &row_tile, &n_tile);
      const int next_row = row_tile * args.tile_rows + warp * 16;
      const int next_end = min(rows, (row_tile + 1) * args.tile_rows);
      for (int first = 0; first < args.stages; first += args.part_stages) {
        const int end = min(first + args.part_stages, args.stages);
        int stage = first;
        if (first == 0) {
          // The last tile is stored while the tensor cores are at this one.
#pragma unroll
          for (int c = 0; c < columns / kStoreColumns; ++c) {
            if (stage < end) {
              multiplier.start(sums, stage == first);
              ++stage;
            }
            store_block<simple>(args, end_row, row, column + c * kStoreColumns, total + c * 16,
                                buffer);
          }
        }
        if (end == args.stages) {
          prefetch_residual<columns>(args, next_end, next_row, n_tile * columns);
        }
        for (; stage < end; ++stage) multiplier.start(sums, stage == first);
        multiplier.finish();
#pragma unroll
        for (int i = 0; i < columns / 2; ++i) total[i] = first == 0 ? sums[i] : total[i] + sums[i];
      }
      row = next_row;
      end_row = next_end;
      column = n_tile * columns;
    }
#pragma unroll
    for (int c = 0; c < columns / kStoreColumns; ++c) {
      store_block<simple>(args, end_row, row, column + c * kStoreColumns, total + c * 16, buffer);
    }
  }
  if constexpr (blocks > 1) {
    __syncwarp();
    cluster_arrive();
    cluster_wait();  // nothing is on its way to a block that has ended
  }
}

template <int columns, int blocks>
void run(const CudaContext& context, const DenseGemm& gemm, DenseArgs args) {
  const CUtensorMap weight = tensor_map(gemm.weight, gemm.n, gemm.k, columns / blocks);
  cut_rows(args, kRows, blocks);
  const CUtensorMap x = tensor_map(gemm.x, gemm.rows, gemm.k, args.tile_rows);
  const int64_t tiles = int64_t{args.row_tiles} * ((args.n + columns - 1) / columns);
  const int64_t grid = std::min<int64_t>(tiles, context.multiprocessors / blocks * int64_t{blocks});
  launch(context, "dense product",
         stores_simply(args) ? dense_wgmma<columns, blocks, true>
                             : dense_wgmma<columns, blocks, false>,
         static_cast<int>(grid), kThreads, WgmmaConfig<columns>::kSharedBytes, weight, x, args);
}

}  // namespace

void launch_dense_wgmma(const CudaContext& context, const DenseGemm& gemm, const DenseArgs& args,
                        int tile_rows, int tile_n) {
  if (tile_rows == 256 && tile_n == 192) return run<192, 2>(context, gemm, args);
  if (tile_rows == 256) return run<128, 2>(context, gemm, args);
  if (tile_n == 192) return run<192, 1>(context, gemm, args);
  if (tile_n == 160) return run<160, 1>(context, gemm, args);
  if (tile_n == 128) return run<128, 1>(context, gemm, args);
  if (tile_n == 96) return run<96, 1>(context, gemm, args);
  run<64, 1>(context, gemm, args);
}

}  // namespace quads::kernels::cuda
