// The compensation masks in a checkpoint.
#pragma once

#include <filesystem>

#include "model/packed_model.h"

namespace quads {

/// `checkpoint`/trainer/masks.safetensors.
std::filesystem::path masks_file(const std::filesystem::path& checkpoint);

/// A U8 tensor "layer<L>.site<S>" a site, empty where nothing is quantised; no tensors for no
/// masks.
void save_masks(const RacMasks& masks, const std::filesystem::path& file);

/// Error that names the file and a tensor that is missing or of another type.
RacMasks load_masks(const std::filesystem::path& file, int64_t num_layers);

}  // namespace quads
