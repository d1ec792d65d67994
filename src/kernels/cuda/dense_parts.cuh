// How the four blocks of a cluster, which have a part of K each, add their sums: every block sends
// each other block the columns that are that block's to add.
#pragma once

#include "kernels/cuda/dense_store.cuh"
#include "kernels/cuda/tma.cuh"

namespace quads::kernels::cuda {

inline constexpr int kParts = 4;

/// In every block's shared memory at `address`: [part][rows][columns of a block, padded].
template <int rows, int columns>
struct PartSums {
  static constexpr int kColumns = columns / kParts;  // of a block
  static constexpr int kStride = kColumns + 8;       // spreads rows over the banks
  static constexpr int kBytes = kParts * rows * kStride * 4;

  uint32_t address;

  /// Two neighbours of the tile's sums over this block's part. Column: even.
  __device__ __forceinline__ void send(int part, int row, int column, float x, float y) const {
    const int at = (part * rows + row) * kStride + column % kColumns;
    store_cluster_8(address_in_block(address + at * 4, column / kColumns), x, y);
  }

  /// By the first `threads` threads, after all have sent: this block's columns to y. `first_row`
  /// and `first_column`: of the tile.
  __device__ __forceinline__ void add(const DenseArgs& args, const float* sums, int part,
                                      int parts_used, int first_row, int first_column,
                                      int threads) const {
    const int limit = dense_rows(args);
    constexpr int kQuads = kColumns / 4;
    for (int i = threadIdx.x; i < rows * kQuads; i += threads) {
      const int r = i / kQuads;
      if (first_row + r >= limit) break;
      const float* from = sums + r * kStride + i % kQuads * 4;
      float4 sum = *reinterpret_cast<const float4*>(from);
      for (int p = 1; p < parts_used; ++p) {
        const float4 more = *reinterpret_cast<const float4*>(from + p * rows * kStride);
        sum.x = sum.x + more.x;
        sum.y = sum.y + more.y;
        sum.z = sum.z + more.z;
        sum.w = sum.w + more.w;
      }
      const float y[4] = {sum.x, sum.y, sum.z, sum.w};
      store_dense<4>(args, first_row + r, first_column + part * kColumns + i % kQuads * 4, y);
    }
  }
};

/// Stages of 64 k of this block's part, and how many parts there are.
struct PartStages {
  int first, count, parts;
  __device__ __forceinline__ PartStages(const DenseArgs& args, int part)
      : first(part * args.part_stages),
        count(max(0, min(args.part_stages, args.stages - first))),
        parts(min(kParts, (args.stages + args.part_stages - 1) / args.part_stages)) {}
};

}  // namespace quads::kernels::cuda
