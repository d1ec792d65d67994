// The backward's products by mma.sync: tiles of both operands come by asynchronous copies as they
// lie in memory, and what has to be transposed is so by ldmatrix.
#include "kernels/cuda/experts/units.cuh"
#include "kernels/cuda/gradients/gradient_launch.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tma.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kStep = 32;      // of what is summed
constexpr int kPartSteps = 8;  // whose sums are added up
constexpr int kStages = 4;

/// Rows of a tile are padded by 16 bytes: eight of them start in different banks.
template <bool transposed, int rows>
struct ATile {
  static constexpr int kStride = (transposed ? rows : kStep) + 8;  // elements
  static constexpr int kElements = (transposed ? kStep : rows) * kStride;
};

template <bool transposed, int m, int n, int warps_m, int warps_n>
struct GradientConfig {
  static constexpr int kM = m;
  static constexpr int kN = n;
  static constexpr int kThreads = warps_m * warps_n * 32;
  static constexpr int kWarpM = m / warps_m;
  static constexpr int kWarpN = n / warps_n;
  static constexpr int kAElements = ATile<transposed, m>::kElements;
  static constexpr int kBStride = n + 8;
  static constexpr int kStageElements = kAElements + kStep * kBStride;
  static constexpr int kSharedBytes = kStages * kStageElements * 2;
};

/// What a block computes.
struct GradientTile {
  int expert;
  int row, row_end;  // of c
  int first_k, end_k;
};

template <bool weight, class C>
__device__ __forceinline__ bool find_tile(const GradientArgs& args, GradientTile* tile) {
  tile->expert = 0;
  if constexpr (weight) {
    tile->expert = blockIdx.z;
    tile->row = blockIdx.x * C::kM;
    tile->row_end = args.m;
    tile->first_k = args.offsets == nullptr ? 0 : args.offsets[tile->expert];
    tile->end_k = args.offsets == nullptr ? args.k : args.offsets[tile->expert + 1];
    return tile->first_k < tile->end_k;
  } else {
    __shared__ ExpertTable table;
    tile->first_k = 0;
    tile->end_k = args.k;
    tile->row = blockIdx.x * C::kM;
    tile->row_end = args.m;
    if (args.offsets == nullptr) return true;
    fill_expert_table(args.offsets, args.experts, C::kM, &table);
    const int index = blockIdx.x;
    if (index >= table.tiles[args.experts]) return false;
    tile->expert = find_expert(table.tiles, args.experts, index);
    tile->row = table.rows[tile->expert] + (index - table.tiles[tile->expert]) * C::kM;
    tile->row_end = table.rows[tile->expert + 1];
    return true;
  }
}

template <bool weight, class C>
__device__ __forceinline__ void copy_stage(const GradientArgs& args, const GradientTile& tile,
                                           const uint16_t* b, int column, int step,
                                           uint32_t stage) {
  const int k = tile.first_k + step * kStep;
  constexpr int kChunks = (weight ? C::kM : kStep) / 8;  // of a row of the tile of a
  constexpr int kRows = weight ? kStep : C::kM;
  for (int i = threadIdx.x; i < kRows * kChunks; i += C::kThreads) {
    const int r = i / kChunks;
    const int c = i % kChunks * 8;
    const int row = (weight ? k : tile.row) + r;
    const int at = (weight ? tile.row : k) + c;
    const bool there =
        row < (weight ? tile.end_k : tile.row_end) && at < (weight ? tile.row_end : tile.end_k);
    const uint16_t* from = args.a + (there ? row * args.lda + at : 0);
    copy_16(stage + (r * ATile<weight, C::kM>::kStride + c) * 2, from, there);
  }
  constexpr int kBChunks = C::kN / 8;
  for (int i = threadIdx.x; i < kStep * kBChunks; i += C::kThreads) {
    const int r = i / kBChunks;
    const int c = i % kBChunks * 8;
    const bool there = k + r < tile.end_k && column + c < args.n;
    const uint16_t* from = b + (there ? static_cast<int64_t>(k + r) * args.n + column + c : 0);
    copy_16(stage + (C::kAElements + r * C::kBStride + c) * 2, from, there);
  }
}

template <bool weight, class C>
__device__ __forceinline__ void multiply_stage(uint32_t stage, int warp_row, int warp_column,
                                               int lane,
                                               float (&sums)[C::kWarpM / 16][C::kWarpN / 8][4]) {
  constexpr int kStride = ATile<weight, C::kM>::kStride;
  const int row = lane & 7;
  const int matrix = lane >> 3;
#pragma unroll
  for (int k = 0; k < kStep; k += 16) {
    uint32_t a[C::kWarpM / 16][4];
#pragma unroll
    for (int i = 0; i < C::kWarpM / 16; ++i) {
      const int m = warp_row + i * 16;
      if constexpr (weight) {
        const int at = (k + (matrix >> 1) * 8 + row) * kStride + m + (matrix & 1) * 8;
        load_matrices_transposed(a[i], stage + at * 2);
      } else {
        load_matrices(a[i], stage + ((m + (lane & 15)) * kStride + k + (lane >> 4) * 8) * 2);
      }
    }
#pragma unroll
    for (int j = 0; j < C::kWarpN / 16; ++j) {
      uint32_t b[4];
      const int at = C::kAElements + (k + (matrix & 1) * 8 + row) * C::kBStride + warp_column +
                     j * 16 + (matrix >> 1) * 8;
      load_matrices_transposed(b, stage + at * 2);
#pragma unroll
      for (int i = 0; i < C::kWarpM / 16; ++i) {
        mma_16x8x16(sums[i][2 * j], a[i], b[0], b[1]);
        mma_16x8x16(sums[i][2 * j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

template <bool weight, int tile_m, int tile_n, int warps_m, int warps_n>
__global__ void __launch_bounds__(warps_m* warps_n * 32)
    multiply(const __grid_constant__ GradientArgs args) {
  using C = GradientConfig<weight, tile_m, tile_n, warps_m, warps_n>;
  extern __shared__ __align__(16) uint8_t shared[];
  wait_for_previous_kernel();
  GradientTile tile;
  if (!find_tile<weight, C>(args, &tile)) return;
  const int column = blockIdx.y * tile_n;
  const uint16_t* b = args.b + tile.expert * args.b_stride;
  const uint32_t ring = shared_address(shared);
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int warp_row = warp / warps_n * C::kWarpM;
  const int warp_column = warp % warps_n * C::kWarpN;
  const int steps = (tile.end_k - tile.first_k + kStep - 1) / kStep;
  const auto copy = [&](int step) {
    if (step < steps) {
      copy_stage<weight, C>(args, tile, b, column, step,
                            ring + step % kStages * C::kStageElements * 2);
    }
    commit_copies();
  };

  float total[C::kWarpM / 16][C::kWarpN / 8][4] = {};
  float sums[C::kWarpM / 16][C::kWarpN / 8][4] = {};
  const auto add_part = [&] {
#pragma unroll
    for (int i = 0; i < C::kWarpM / 16; ++i) {
#pragma unroll
      for (int j = 0; j < C::kWarpN / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          total[i][j][e] = total[i][j][e] + sums[i][j][e];
          sums[i][j][e] = 0.0F;
        }
      }
    }
  };
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    copy(step + kStages - 1);
    multiply_stage<weight, C>(ring + step % kStages * C::kStageElements * 2, warp_row, warp_column,
                              lane, sums);
    if (step % kPartSteps == kPartSteps - 1) add_part();
  }
  add_part();

  float* c = args.c + tile.expert * args.c_stride;
#pragma unroll
  for (int i = 0; i < C::kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < C::kWarpN / 8; ++j) {
      const int to_column = column + warp_column + j * 8 + (lane & 3) * 2;
      if (to_column >= args.n) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.row + warp_row + i * 16 + half * 8 + (lane >> 2);
        if (row >= tile.row_end) continue;
        auto* to = reinterpret_cast<float2*>(c + static_cast<int64_t>(row) * args.n + to_column);
        float2 sum = make_float2(total[i][j][half * 2], total[i][j][half * 2 + 1]);
        if constexpr (weight) {
          const float2 before = *to;
          sum.x = before.x + sum.x;
          sum.y = before.y + sum.y;
        }
        *to = sum;
      }
    }
  }
}

template <bool weight, int m, int n, int warps_m, int warps_n>
void run(const CudaContext& context, const GradientArgs& args) {
  using C = GradientConfig<weight, m, n, warps_m, warps_n>;
  // The tiles of experts are not known here: as many as there may be.
  const int row_tiles =
      (args.m + m - 1) / m + (weight || args.offsets == nullptr ? 0 : args.experts);
  const dim3 grid(row_tiles, (args.n + n - 1) / n, weight ? args.experts : 1);
  launch(context, weight ? "weight's gradient" : "input's gradient",
         multiply<weight, m, n, warps_m, warps_n>, grid, C::kThreads, C::kSharedBytes, args);
}

template <bool weight>
void run_any(const CudaContext& context, const GradientArgs& args) {
  // Small tiles where large ones would leave multiprocessors idle.
  const int64_t tiles = static_cast<int64_t>((args.m + 127) / 128) * ((args.n + 127) / 128) *
                        (weight ? args.experts : 1);
  if (tiles >= 2 * context.multiprocessors) return run<weight, 128, 128, 2, 4>(context, args);
  run<weight, 64, 64, 2, 2>(context, args);
}

}  // namespace

void launch_input_gradient(const CudaContext& context, const GradientArgs& args) {
  run_any<false>(context, args);
}
void launch_weight_gradient(const CudaContext& context, const GradientArgs& args) {
  run_any<true>(context, args);
}

}  // namespace quads::kernels::cuda
