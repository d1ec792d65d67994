// Checkpoints of a run: a model directory that transformers loads, plus trainer/ with what resuming
// needs. Tensors are stored by parameter name, so a checkpoint does not depend on who wrote it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "io/json.h"
#include "model/parameters.h"
#include "model/precision.h"
#include "trainer/optimizer.h"

namespace quads {

/// Writes `root`/step_<step> (six digits) whole or not at all: the parameters, what `add_files`
/// puts beside them (tokenizer, generation_config), trainer/optimizer.safetensors (masters and
/// moments), trainer/masks.safetensors, trainer/state.json = `state` (whose "step" is `step`), and
/// the sizes and hashes of these three in trainer/checksums.json. Then removes the oldest
/// checkpoints beyond `keep` (0: keeps all).
void save_checkpoint(const std::filesystem::path& root, int64_t step, const Parameters& parameters,
                     Optimizer& optimizer, const RacMasks& masks, const Json& state,
                     const std::function<void(const std::filesystem::path&)>& add_files,
                     int64_t keep);

/// The checkpoint with the highest step below `root`, if any; directories without a state are none.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& root);

/// Restores optimizer and parameters (from the masters); returns the state, fills `masks`. Error
/// naming file and tensor if something is missing, misshapen, changed since it was saved or out of
/// range.
Json load_checkpoint(const std::filesystem::path& checkpoint, Parameters& parameters,
                     Optimizer& optimizer, RacMasks& masks);

}  // namespace quads
