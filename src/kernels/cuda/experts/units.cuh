// Units of work, found on the device from the experts' offsets: a tile of an expert's rows, for one
// tile of N. Blocks of a persistent grid take every gridDim-th unit.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/gemm_launch.h"
#include "kernels/cuda/experts/grouped_gemm.h"

namespace quads::kernels::cuda {

/// Prefix sums over the experts, in shared memory.
struct ExpertTable {
  int rows[kMaxExperts + 1];    // sorted rows before the expert
  int padded[kMaxExperts + 1];  // the same, every expert padded to 8
  int tiles[kMaxExperts + 1];   // tiles of rows before the expert
};

/// By all threads of the block, which then are in step. `tile_rows`: what a tile holds at most.
__device__ __forceinline__ void fill_expert_table(const int32_t* offsets, int experts,
                                                  int tile_rows, ExpertTable* table) {
  for (int i = threadIdx.x; i <= experts; i += blockDim.x) table->rows[i] = offsets[i];
  __syncthreads();
  if (threadIdx.x < 32) {
    // A lane has neighbouring experts.
    const int lane = threadIdx.x;
    const int of_lane = (experts + 31) / 32;
    const int first = min(lane * of_lane, experts);
    const int end = min(first + of_lane, experts);
    int tiles = 0;
    int padded = 0;
    for (int e = first; e < end; ++e) {
      const int count = table->rows[e + 1] - table->rows[e];
      tiles += (count + tile_rows - 1) / tile_rows;
      padded += (count + 7) & ~7;
    }
    int tiles_to = tiles;
    int padded_to = padded;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int t = __shfl_up_sync(~0U, tiles_to, d);
      const int p = __shfl_up_sync(~0U, padded_to, d);
      if (lane >= d) {
        tiles_to += t;
        padded_to += p;
      }
    }
    if (lane == 31) {
      table->tiles[experts] = tiles_to;
      table->padded[experts] = padded_to;
    }
    tiles_to -= tiles;
    padded_to -= padded;
    for (int e = first; e < end; ++e) {
      const int count = table->rows[e + 1] - table->rows[e];
      table->tiles[e] = tiles_to;
      table->padded[e] = padded_to;
      tiles_to += (count + tile_rows - 1) / tile_rows;
      padded_to += (count + 7) & ~7;
    }
  }
  __syncthreads();
}

/// The greatest index whose entry is <= value; prefix[0] = 0 <= value < prefix[size].
__device__ __forceinline__ int find_expert(const int* prefix, int size, int value) {
  int low = 0;
  int high = size;
  while (high - low > 1) {
    const int middle = (low + high) >> 1;
    if (prefix[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

struct __align__(16) Unit {
  int first_row;        // of y
  int rows;             // 1..tile_rows
  int n_tile;           // first tile of 64 rows of N, in the expert
  float scale;          // the expert's with the decoder's factor
  int64_t weight_tile;  // the same tile counted from the first expert
  int image_row;        // padded rows before the expert
  int padded_rows;      // the expert's
  int image_first;      // first row of the tile in the expert, a multiple of 8
  int unused;

  __device__ int columns() const { return (rows + 7) & ~7; }
};

/// Tile `tile` of all tiles of rows; the tiles of an expert are equally high.
__device__ __forceinline__ Unit find_unit(const ExpertTable& table, const GemmArgs& args, int tile,
                                          int n_tile) {
  const int e = find_expert(table.tiles, args.experts, tile);
  const int first = table.rows[e];
  const int count = table.rows[e + 1] - first;
  const int parts = table.tiles[e + 1] - table.tiles[e];
  const int height = ((count + parts - 1) / parts + 7) & ~7;
  const int begin = (tile - table.tiles[e]) * height;
  Unit unit;
  unit.first_row = first + begin;
  unit.rows = min(height, count - begin);
  unit.n_tile = n_tile;
  unit.scale = args.weight_factor * (args.global_scales == nullptr ? 1.0F : args.global_scales[e]);
  unit.weight_tile = static_cast<int64_t>(e) * (args.n / 64) + n_tile;
  unit.image_row = table.padded[e];
  unit.padded_rows = table.padded[e + 1] - table.padded[e];
  unit.image_first = begin;
  unit.unused = 0;
  return unit;
}

}  // namespace quads::kernels::cuda
