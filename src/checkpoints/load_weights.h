// A model directory's weights, quantised or not, as a policy starts from them or rolls out with
// them.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoints/quantization_config.h"
#include "model/parameter_files.h"
#include "model/stored_weights.h"

namespace quads {

enum class StoredCodes : uint8_t { kDrop, kKeep };

struct OpenedWeights {
  /// Of a quantised checkpoint: dequantised when they are read, each value rounded once to BF16.
  std::unique_ptr<const ParameterFiles> files;
  /// The codes and scales of an NVFP4 checkpoint, if they were asked for.
  std::shared_ptr<StoredWeights> stored;
};

/// Finds the weights of an unquantised checkpoint (open_parameters) or of one in any
/// CheckpointFormat. Beyond those functions' errors, all of which name the tensor: what
/// quantization_config says is quantised and is not, or the reverse; a format's tensor that is
/// missing or belongs to no layer. With kKeep also: a checkpoint that is not NVFP4, and layers of
/// one parameter (gate and up; q, k and v) with global scales of their own, which one matrix
/// product could not apply.
OpenedWeights open_weights(const std::filesystem::path& directory,
                           StoredCodes codes = StoredCodes::kDrop);

struct LoadedWeights {
  Parameters parameters;
  std::shared_ptr<StoredWeights> stored;
};
/// The same, read into memory.
LoadedWeights load_weights(const std::filesystem::path& directory,
                           StoredCodes codes = StoredCodes::kDrop);

}  // namespace quads
