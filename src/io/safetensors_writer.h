// Writing safetensors files and sharded models as transformers and safetensors read them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "io/safetensors.h"

namespace quads {

/// Writes one file, whole or not at all. The tensors' bytes go straight from where they lie to the
/// file; larger elements come first, so that each tensor is aligned. Error for a name twice, the
/// name "__metadata__", or an nbytes that is not the shape's.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// The same of bytes that lie in memory one after another only: `bytes(i)` is where those of
/// tensors[i] are, asked for in the order of the file (the given one, if all elements are of one
/// size) and written before the next is.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::function<const std::byte*(size_t)>& bytes,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Writes model.safetensors into `directory`, or, if the tensors take more than `max_shard_bytes`,
/// shards model-00001-of-0000N.safetensors, filled in the order given, and
/// model.safetensors.index.json. A tensor larger than that has a shard of its own. To make the set
/// appear as a whole, write into an AtomicDir.
void write_model_tensors(const std::filesystem::path& directory,
                         std::span<const TensorView> tensors,
                         size_t max_shard_bytes = size_t{5} << 30);

}  // namespace quads
