// The rotary position embedding that a configuration asks for.
#pragma once

#include "io/rope_config.h"
#include "kernels/rope.h"

namespace quads {

/// The table for heads of head_dim. Frequencies and magnitude are those of transformers'
/// modeling_rope_utils (linear, yarn, llama3), in FP64 with a logarithm of our own, so that every
/// machine has the same bits. Error unless head_dim is even, 2..256.
kernels::RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim);

}  // namespace quads
