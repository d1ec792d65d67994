// The backward's products by wgmma (sm_90a only): a persistent grid of pairs of blocks, in each a
// warp that copies and two warpgroups that multiply, 64 rows of the result each. Operands that lie
// with what is summed as rows are multiplied as they lie. Pairs take neighbouring rows of the
// result and bring each other half of b's stages.
#include <algorithm>

#include "kernels/cuda/dense/dense_wgmma.cuh"
#include "kernels/cuda/gradients/gradient_launch.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/store_block.cuh"
#include "kernels/cuda/tensor_map.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kPair = 2;  // blocks of a cluster
constexpr int kWarpgroups = 2;
constexpr int kThreads = (kWarpgroups + 1) * 128;  // the last warpgroup copies
constexpr int kStep = kBoxColumns;                 // of what is summed, in a stage
constexpr int kPartStages = 16;                    // whose sums are added up: 1024
constexpr int kABytes = kRows * kStep * 2;
constexpr int kPanelBytes = kStep * 128;

// Sums on their way out.
constexpr int kStoreBytes = kWarpgroups * 4 * kStoreBytesOfWarp;

template <int columns>
struct WgmmaGradient {
  static constexpr int kStageBytes = kABytes + columns * kStep * 2;
  static constexpr int kStages = std::min(8, 204 * 1024 / kStageBytes);
  static constexpr int kSharedBytes = 2048 + kStages * kStageBytes + kStoreBytes;
};

/// A tile of a pair of blocks.
struct PairTile {
  int expert;
  int row, end_row;  // of c: this block's, and the expert's last
  int column;
  int first;  // row of a at which the sums begin; 0: columns of it are summed
  int sums;   // how many rows or columns
  int b_row;  // where b begins
  __device__ __forceinline__ int stages() const { return (sums + kStep - 1) / kStep; }
};

/// Tiles in the order in which they are taken: expert by expert, and there in bands of rows, so
/// that what runs at a time shares rows of a and columns of b. Asked for with rising indices.
template <bool weight, int columns>
class Tiles {
 public:
  __device__ __forceinline__ explicit Tiles(const GradientArgs& args) : args_(args) { load(); }
  __device__ __forceinline__ bool find(int index, int rank, PairTile* tile) {
    const int n_tiles = (args_.n + columns - 1) / columns;
    while (index - before_ >= pairs_ * n_tiles) {
      before_ += pairs_ * n_tiles;
      if (++expert_ == args_.experts) return false;
      load();
    }
    constexpr int kBand = 8;  // pairs
    const int local = index - before_;
    const int band = local / (kBand * n_tiles);
    const int height = min(kBand, pairs_ - band * kBand);
    const int in_band = local - band * kBand * n_tiles;
    const int row = ((band * kBand + in_band % height) * kPair + rank) * kRows;
    tile->expert = expert_;
    tile->column = in_band / height * columns;
    tile->row = weight ? row : begin_ + row;
    tile->end_row = weight ? args_.m : begin_ + rows_;
    tile->first = weight ? begin_ : 0;
    tile->sums = weight ? rows_ : args_.k;
    tile->b_row = weight ? begin_ : expert_ * args_.k;
    return true;
  }

 private:
  __device__ __forceinline__ void load() {
    const bool all = args_.offsets == nullptr;
    begin_ = all ? 0 : args_.offsets[expert_];
    rows_ = (all ? (weight ? args_.k : args_.m) : args_.offsets[expert_ + 1]) - begin_;
    pairs_ = ((weight ? (rows_ > 0 ? args_.m : 0) : rows_) + kPair * kRows - 1) / (kPair * kRows);
  }

  const GradientArgs& args_;
  int expert_ = 0, before_ = 0;
  int begin_, rows_, pairs_;  // of the expert
};

/// By the copying thread: a stage's boxes of a and this block's half of b.
template <bool weight, int columns>
__device__ __forceinline__ void copy_stage(const CUtensorMap* a, const CUtensorMap* b,
                                           const PairTile& tile, int stage, int rank, uint32_t to,
                                           uint32_t full) {
  const int at = stage * kStep;
  if constexpr (weight) {
    copy_box(to, a, tile.row, tile.first + at, full);
    copy_box(to + kPanelBytes, a, tile.row + kBoxColumns, tile.first + at, full);
  } else {
    copy_box(to, a, at, tile.row, full);
  }
  constexpr int kShare = kStep / kPair;
#pragma unroll
  for (int panel = 0; panel < columns / kBoxColumns; ++panel) {
    copy_box_to_all(to + kABytes + panel * kPanelBytes + rank * kShare * 128, b,
                    tile.column + panel * kBoxColumns, tile.b_row + at + rank * kShare, full,
                    (1 << kPair) - 1);
  }
}

/// Where a warp's 16 rows of a tile go, and how many rows and columns from there on there are.
struct Place {
  float* c;
  int rows, columns;
};

__device__ __forceinline__ Place place_of(const GradientArgs& args, const PairTile& tile,
                                          int warp) {
  const int row = tile.row + warp * 16;
  return {args.c + tile.expert * args.c_stride + static_cast<int64_t>(row) * args.n + tile.column,
          tile.end_row - row, args.n - tile.column};
}

/// By a warp: asks the L2 cache for what is added to.
template <int columns>
__device__ __forceinline__ void prefetch_sums(const Place& to, int n) {
  for (int i = static_cast<int>(threadIdx.x) & 31; i < 16 * columns / 32; i += 32) {
    const int column = i / 16 * 32;
    if (i % 16 >= to.rows || column >= to.columns) continue;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(to.c + i % 16 * n + column));
  }
}

/// By a warp: its rows of 32 columns from `column` on; sums: of four steps of 8 columns.
template <bool add>
__device__ __forceinline__ void store_block(const Place& to, int n, int column, const float* sums,
                                            float* buffer) {
  const int lane = threadIdx.x & 31;
  stage_block(sums, buffer);
  column += (lane & 7) * 4;
  if (column >= to.columns) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = i * 4 + (lane >> 3);
    if (r >= to.rows) return;
    const float4 y = *reinterpret_cast<float4*>(buffer + r * kStoreStride + (lane & 7) * 4);
    float* at = to.c + r * n + column;
    if constexpr (add) {
      add_in_place(at, y);
    } else {
      *reinterpret_cast<float4*>(at) = y;
    }
  }
}

template <bool weight, int columns>
__global__ void __cluster_dims__(kPair, 1, 1) __launch_bounds__(kThreads, 1)
    gradient_wgmma(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                   const __grid_constant__ GradientArgs args) {
  using C = WgmmaGradient<columns>;
  constexpr Operands kOperands = weight ? Operands::kBothByK : Operands::kWeightByK;
  extern __shared__ uint8_t shared[];
  const uint32_t barriers = shared_address(shared);
  const uint32_t ring = (barriers + 1024 + 1023) & ~1023U;
  const uint32_t empty = barriers + 8 * C::kStages;
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, threadIdx.x >> 5, 0);
  if (threadIdx.x == kWarpgroups * 128) {
    prefetch_map(&a);
    prefetch_map(&b);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(barriers + 8 * i, 1);
      barrier_init(empty + 8 * i, kPair * kWarpgroups * 4);
    }
    barrier_init_fence();
  }
  cluster_arrive();
  cluster_wait();
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int rank = static_cast<int>(cluster_rank());
  const int pairs = gridDim.x / kPair;
  Tiles<weight, columns> tiles(args);
  PairTile tile;

  if (warp >= kWarpgroups * 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == kWarpgroups * 4 && lane == 0) {
      RingPlace<C::kStages> place;
      for (int index = blockIdx.x / kPair; tiles.find(index, rank, &tile); index += pairs) {
        const int stages = tile.stages();
        for (int stage = 0; stage < stages; ++stage, place.advance()) {
          const uint32_t full = barriers + place.slot * 8;
          barrier_wait(empty + place.slot * 8, place.parity ^ 1);
          barrier_expect(full, C::kStageBytes);
          copy_stage<weight, columns>(&a, &b, tile, stage, rank, ring + place.slot * C::kStageBytes,
                                      full);
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    auto* buffer =
        reinterpret_cast<float*>(shared + (ring - barriers) + C::kStages * C::kStageBytes) +
        warp * 16 * kStoreStride;
    Multiplier<kRows, columns, C::kStages, kPair, kOperands> multiplier{ring,     barriers, lane,
                                                                        warp / 4, {},       0};
    float total[columns / 2];
    float sums[columns / 2];
    Place to{nullptr, 0, 0};  // of the tile whose total is still to be stored: there is none yet
    for (int index = blockIdx.x / kPair; tiles.find(index, rank, &tile); index += pairs) {
      const int stages = tile.stages();
      const auto start = [&](int stage, bool first) {
        if constexpr (weight) {
          const int valid = tile.sums - stage * kStep;
          if (valid < kStep) multiplier.clear_behind(valid);
        }
        multiplier.start(sums, first);
      };
      for (int first = 0; first < stages; first += kPartStages) {
        const int end = min(first + kPartStages, stages);
        int stage = first;
        if (first == 0) {
          // The last tile is stored while the tensor cores are at this one.
#pragma unroll
          for (int i = 0; i < columns / kStoreColumns; ++i) {
            if (stage < end) {
              start(stage, stage == first);
              ++stage;
            }
            store_block<weight>(to, args.n, i * kStoreColumns, total + i * 16, buffer);
          }
          to = place_of(args, tile, warp);
          if constexpr (weight) prefetch_sums<columns>(to, args.n);
        }
        for (; stage < end; ++stage) start(stage, stage == first);
        multiplier.finish();
#pragma unroll
        for (int i = 0; i < columns / 2; ++i) total[i] = first == 0 ? sums[i] : total[i] + sums[i];
      }
    }
#pragma unroll
    for (int i = 0; i < columns / kStoreColumns; ++i) {
      store_block<weight>(to, args.n, i * kStoreColumns, total + i * 16, buffer);
    }
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();  // nothing is on its way to a block that has ended
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

const Bf16* values(const uint16_t* bits) { return reinterpret_cast<const Bf16*>(bits); }

template <bool weight, int columns>
void run(const CudaContext& context, const GradientArgs& args) {
  using C = WgmmaGradient<columns>;
  // Rows and columns of a, as it lies; b's rows are what is summed, of one matrix or of all.
  const CUtensorMap a = weight ? tensor_map(values(args.a), args.k, args.m, kStep, args.lda)
                               : tensor_map(values(args.a), args.m, args.k, kRows, args.lda);
  const int64_t b_rows = weight ? args.k : int64_t{args.k} * args.experts;
  const CUtensorMap b = tensor_map(values(args.b), b_rows, args.n, kStep / kPair);
  const int64_t most = divide_up(args.m, kPair * kRows) + (weight ? 0 : args.experts);
  const int64_t tiles = most * divide_up(args.n, columns) * (weight ? args.experts : 1);
  const int64_t grid = std::min<int64_t>(tiles, context.multiprocessors / kPair) * kPair;
  launch(context, weight ? "weight's gradient" : "input's gradient",
         gradient_wgmma<weight, columns>, static_cast<unsigned>(grid), kThreads, C::kSharedBytes, a,
         b, args);
}

template <bool weight>
void run_any(const CudaContext& context, const GradientArgs& args) {
  // Wide tiles, unless they cover a ninth more than those of 128 do.
  const bool wide = divide_up(args.n, 192) * 192 * 9 < divide_up(args.n, 128) * 128 * 10;
  return wide ? run<weight, 192>(context, args) : run<weight, 128>(context, args);
}

}  // namespace

void launch_input_gradient_wgmma(const CudaContext& context, const GradientArgs& args) {
  run_any<false>(context, args);
}
void launch_weight_gradient_wgmma(const CudaContext& context, const GradientArgs& args) {
  run_any<true>(context, args);
}

}  // namespace quads::kernels::cuda
