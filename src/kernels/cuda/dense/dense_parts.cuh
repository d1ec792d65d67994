// How the four blocks of a cluster, which have a part of K each, add their sums: every block sends
// each other block the columns that are that block's to add.
#pragma once

#include "kernels/cuda/dense/dense_store.cuh"
#include "kernels/cuda/tma.cuh"

namespace quads::kernels::cuda {

inline constexpr int kParts = 4;

/// In every block's shared memory at `address`: [part][rows][columns of a block, padded]. `threads`
/// of a block add.
template <int rows, int columns, int threads>
struct PartSums {
  static constexpr int kColumns = columns / kParts;  // of a block
  static constexpr int kStride =
      kColumns / 16 * 16 + 8;  // odd in eights: spreads rows over the banks
  static constexpr int kBytes = kParts * rows * kStride * 4;
  static constexpr int kQuads = kColumns / 4;                             // of a row
  static constexpr int kItems = (rows * kQuads + threads - 1) / threads;  // quads of a thread

  uint32_t address;

  /// Two neighbours of the tile's sums over this block's part. Column: even.
  __device__ __forceinline__ void send(int part, int row, int column, float x, float y) const {
    const int at = (part * rows + row) * kStride + column % kColumns;
    store_cluster_8(address_in_block(address + at * 4, column / kColumns), x, y);
  }

  /// The same in two steps, for many sums: they are laid out in this block's shared memory at
  /// `staging`, kBytes, where the copy engine fetches them. By all threads, then, after a barrier
  /// of theirs, by one. `arrived`: a barrier of one arrival, which it makes.
  __device__ __forceinline__ void stage(uint32_t staging, int part, int row, int column, float x,
                                        float y) const {
    const int owner = column / kColumns;
    const uint32_t to = (owner == part ? address : staging) +
                        ((owner * rows + row) * kStride + column % kColumns) * 4;
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
  }
  __device__ __forceinline__ void send_staged(uint32_t staging, int part, int tile_rows,
                                              uint32_t arrived) const {
    const int bytes = tile_rows * kStride * 4;
    barrier_expect(arrived, (kParts - 1) * bytes);
#pragma unroll
    for (int i = 1; i < kParts; ++i) {
      const int owner = (part + i) % kParts;
      copy_to_block(address + part * rows * kStride * 4, staging + owner * rows * kStride * 4,
                    bytes, arrived, owner);
    }
  }

  /// What add will need besides sums; before the wait for them. `first_row` and `first_column`: of
  /// the tile.
  __device__ __forceinline__ void fetch(const DenseArgs& args, int part, int first_row,
                                        int first_column, float4 (&residuals)[kItems]) const {
    const int end = tile_end(args, first_row);
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int i = static_cast<int>(threadIdx.x) + item * threads;
      const int row = first_row + i / kQuads;
      if (row >= end) break;
      residuals[item] = load_residual(args, row, first_column + part * kColumns + i % kQuads * 4);
    }
  }

  /// By the first `threads` threads, after all have sent: this block's columns to y.
  __device__ __forceinline__ void add(const DenseArgs& args, const float* sums, int part,
                                      int parts_used, int first_row, int first_column,
                                      const float4 (&residuals)[kItems]) const {
    const int end = tile_end(args, first_row);
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int i = static_cast<int>(threadIdx.x) + item * threads;
      const int r = i / kQuads;
      if (first_row + r >= end) break;
      const float* from = sums + r * kStride + i % kQuads * 4;
      float4 sum = *reinterpret_cast<const float4*>(from);
      for (int p = 1; p < parts_used; ++p) {
        const float4 more = *reinterpret_cast<const float4*>(from + p * rows * kStride);
        sum.x = sum.x + more.x;
        sum.y = sum.y + more.y;
        sum.z = sum.z + more.z;
        sum.w = sum.w + more.w;
      }
      store_dense(args, first_row + r, first_column + part * kColumns + i % kQuads * 4, sum,
                  residuals[item]);
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
