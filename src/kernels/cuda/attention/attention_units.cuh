// Units of attention's work: rows of one sequence, a KV head and a range of tiles of positions. All
// warps of a block walk through the same units.
#pragma once

#include "kernels/cuda/attention/attention_launch.h"

namespace quads::kernels::cuda {

struct AttentionUnit {
  int row;  // the first, of `rows` rows of a sequence
  int rows;
  int64_t table;  // of the sequence's page ids
  int kv_head;
  int last;             // the largest position of the rows
  int tile, tiles_end;  // tiles of positions, as far as `last`
  int split;            // of the first tile
};

__device__ __forceinline__ int attention_rows_of(const RowPlaces& places) {
  const int rows = static_cast<int>(places.rows);
  return places.row_count == nullptr ? rows : min(rows, *places.row_count);
}

/// A row and a split of its context at a time; blocks take every gridDim-th.
struct RowWalk {
  int rows, unit;

  __device__ __forceinline__ RowWalk(const AttentionArgs& args, int /*tile_rows*/)
      : rows(attention_rows_of(args.places)), unit(static_cast<int>(blockIdx.x)) {}

  __device__ __forceinline__ bool next(const AttentionArgs& args, AttentionUnit* out) {
    const int of_split = rows * args.kv_heads;
    for (; unit < of_split * args.splits; unit += static_cast<int>(gridDim.x)) {
      const int split = unit / of_split;
      const int rest = unit - split * of_split;
      const int row = rest / args.kv_heads;
      const int last = args.places.positions[row];
      if (last < 0 || last < split * static_cast<int>(kAttentionSplit)) continue;
      out->row = row;
      out->rows = 1;
      out->table = args.places.sequences[row] * args.places.max_pages;
      out->kv_head = rest - row * args.kv_heads;
      out->last = last;
      out->split = split;
      out->tile = split * kSplitTiles;
      out->tiles_end = min(out->tile + kSplitTiles, last / kAttentionTile + 1);
      unit += static_cast<int>(gridDim.x);
      return true;
    }
    return false;
  }
};

/// The rows of a block's tile, those of one sequence at a time, over their whole context.
struct RunWalk {
  int row, end, kv_head;

  __device__ __forceinline__ RunWalk(const AttentionArgs& args, int tile_rows) {
    // Later rows have longer contexts: they go first.
    const int unit = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    row = unit / args.kv_heads * tile_rows;
    kv_head = unit % args.kv_heads;
    end = min(row + tile_rows, attention_rows_of(args.places));
  }

  __device__ __forceinline__ bool next(const AttentionArgs& args, AttentionUnit* out) {
    const int32_t* positions = args.places.positions;
    const int32_t* sequences = args.places.sequences;
    while (row < end && positions[row] < 0) ++row;
    if (row >= end) return false;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int sequence = sequences[row];
    int count = 0;
    int last = 0;
    for (int first = row; first < end; first += 32) {
      const int r = first + lane;
      const int position = r < end && sequences[r] == sequence ? positions[r] : -1;
      const uint32_t others = ~__ballot_sync(~0U, position >= 0);
      const int n = others == 0 ? 32 : __ffs(static_cast<int>(others)) - 1;
      count += n;
      last = max(last, __reduce_max_sync(~0U, lane < n ? position : 0));
      if (n < 32) break;
    }
    out->row = row;
    out->rows = count;
    out->table = sequence * args.places.max_pages;
    out->kv_head = kv_head;
    out->last = last;
    out->split = 0;
    out->tile = 0;
    out->tiles_end = last / kAttentionTile + 1;
    row += count;
    return true;
  }
};

}  // namespace quads::kernels::cuda
