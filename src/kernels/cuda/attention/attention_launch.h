// What lies between checking the arguments of attention and its kernels.
#pragma once

#include <vector_types.h>

#include "kernels/cuda/attention/attention_rows.h"

namespace quads::kernels::cuda {

inline constexpr int kAttentionTile = 64;  // positions
inline constexpr int kSplitTiles = static_cast<int>(kAttentionSplit) / kAttentionTile;

/// An AttentionRows as the kernels take it, beside the tensor map of the pages.
struct AttentionArgs {
  RowPlaces places;
  const uint16_t* q;
  uint16_t* out;
  // Of every row, split and head, what merging needs: o [head_dim], and m and l. Null: one split.
  float* partial_sums;
  float2* partial_stats;
  int heads;
  int kv_heads;
  int group;  // heads of a KV head
  int head_dim;
  int splits;
  float scale;  // times log2(e)
};

/// Error unless a block may have so much shared memory.
void check_shared_bytes(const CudaContext& context, int bytes, int head_dim);

void launch_attention_row(const CudaContext& context, const AttentionRows& rows,
                          const AttentionArgs& args);
void launch_attention_runs(const CudaContext& context, const AttentionRows& rows,
                           const AttentionArgs& args);
void launch_attention_wgmma(const CudaContext& context, const AttentionRows& rows,
                            const AttentionArgs& args);

}  // namespace quads::kernels::cuda
