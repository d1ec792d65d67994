// How many rows a micro-batch has, and what they take of a GPU's memory.
#pragma once

#include <cstdint>

#include "io/model_config.h"

namespace quads {

inline constexpr int64_t kMicroBatchRows = 2048;               // on the CPU, and at least on a GPU
inline constexpr int64_t kLargestMicroBatch = 32768;           // more gains nothing
inline constexpr int64_t kMicroBatchBytes = int64_t{8} << 30;  // that a GPU's may take

/// What a row of a micro-batch takes on a GPU, in bytes: the layers' inputs that are kept, and a
/// layer's forward and backward (cuda/device_blocks.h, cuda/cuda_blocks.h). Logits are held apart.
int64_t micro_batch_row_bytes(const ModelConfig& config, bool checkpoint_activations);

/// The rows to take on a GPU where none are asked for: as many as fit kMicroBatchBytes. A function
/// of the model and not of the memory that happens to be free: sums of gradients depend on it.
int64_t default_micro_batch(const ModelConfig& config, bool checkpoint_activations);

}  // namespace quads
