// The tensors of a model, whether in one safetensors file or in shards with an index.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/safetensors.h"

namespace quads {

/// One file of a model, and the tensors that the index places in it.
struct Shard {
  std::filesystem::path path;
  std::optional<std::set<std::string>> tensors;  // none: there is no index
};

/// `path` is a .safetensors file, or a model directory with model.safetensors or
/// model.safetensors.index.json and its shards. Errors: no weights there (pickled ones are named
/// and refused), a missing shard, a shard's name that leaves the directory.
std::vector<Shard> list_shards(const std::filesystem::path& path);

/// Maps it. Errors: those of the file itself, and a tensor that the index places there and is not,
/// or the reverse.
SafetensorsFile open_shard(const Shard& shard);

/// All shards at once.
class TensorStore {
 public:
  /// Errors as for list_shards and open_shard.
  explicit TensorStore(const std::filesystem::path& path);

  /// Sorted by name. The views live as long as the store.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const TensorView* find(const std::string& name) const;
  /// Error that names path and tensor if there is none.
  const TensorView& at(const std::string& name) const;
  const std::filesystem::path& path() const { return path_; }
  /// Takes what was read of a tensor out of this process's memory (MappedFile::release).
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace quads
