// What ATen's kernels take of a GPU's memory.
#pragma once

#include <cstdint>

#include "io/model_config.h"

namespace quads {

/// Bytes that ATen's blocks (aten/aten_blocks.h) may allocate on a GPU for micro-batches of up to
/// `rows` rows: the layers' inputs that are kept, the tensors of a block's forward and backward,
/// its weights' gradients, logits, and the libraries' workspaces. The bound of their allocator.
int64_t aten_bytes(const ModelConfig& config, int64_t rows, bool checkpoint_activations);

}  // namespace quads
