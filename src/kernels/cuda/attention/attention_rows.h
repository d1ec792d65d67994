// Causal attention of rows over paged keys and values: decoding, prefill, scoring and the trainer's
// packed sequences alike.
//
// A row's bits depend on its query and on the keys and values of positions 0..its own alone: not on
// the other rows, their order, the tile that takes it or where pages lie. Positions are cut into
// splits of 512 and tiles of 64, by absolute position. In a split, tile by tile, with c = scale
// log2(e): s = q . k, one tensor-core chain over k16 steps; m' = max(m, c max s); p = bf16(2^fma(s,
// c, -m')) by ex2.approx (within 2^-22); l' = l 2^(m - m') + the tile's sum of p in a fixed order;
// o' = o 2^(m - m') + p v, one chain over k16 steps. Splits are merged in rising order by the same
// rule; out = bf16(o (1 / l)).
#pragma once

#include "kernels/cuda/attention/kv_pages.h"
#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

inline constexpr int64_t kAttentionSplit = 512;  // positions

/// How rows are tiled. The result is the same; which is faster depends on the rows.
enum class AttentionTile : uint8_t {
  kRow,      // a row and a split at a time: decoding
  kRuns,     // rows of a sequence beside each other share their keys: prefill, scoring, training.
             // Correct for any rows
  kRunsMma,  // the same as it runs on chips other than Hopper and for heads beyond 128
};

/// Device pointers, 16-byte aligned. Keys and values of positions 0..positions[r] of a row's
/// sequence are in the pages. What lies in other positions has no influence, except that by kRuns a
/// value that is not finite, at the position of a row of this call, may reach other rows of its
/// sequence in this call.
struct AttentionRows {
  HeadShape shape;
  RowPlaces places;
  float scale = 0.0F;        // on q . k
  int64_t max_context = 0;   // a bound of positions[r] + 1
  const Bf16* q = nullptr;   // [rows, q_width]
  const Bf16* kv = nullptr;  // this layer's pages: [pages][page_elements]
  int64_t pages = 0;         // that kv holds
  void* scratch = nullptr;   // attention_scratch_bytes(...), 16-byte aligned; null where that is 0
  Bf16* out = nullptr;       // [rows, q_width]; rows that are left out stay
};

/// Bytes of scratch; 0 but for kRow with max_context > kAttentionSplit.
int64_t attention_scratch_bytes(const HeadShape& shape, int64_t rows, int64_t max_context,
                                AttentionTile tile);

/// Launches one kernel, or two for kRow with more than one split. Error on sizes out of range.
/// Under overlap the previous kernel must not write the places; with kRow it may write keys and
/// values of a row's own tile of 64 positions alone: no two rows of one sequence in a call.
void attention_rows(const CudaContext& context, const AttentionRows& args, AttentionTile tile);

}  // namespace quads::kernels::cuda
