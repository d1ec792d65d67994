// Flash attention over packed sequences, with a backward that gives the same bits every time.
#pragma once

#include <ATen/core/Tensor.h>

namespace quads {

/// How rows are sequences.
struct PackedSequences {
  at::Tensor offsets;  // [sequences + 1] int32 on the device, without empty ones
  int64_t longest;
};

/// Causal. q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim], the result as q; BF16 on
/// a GPU; head_dim is a multiple of 8, at most 256.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const PackedSequences& sequences, double scale);

}  // namespace quads
