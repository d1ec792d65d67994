// The tensors of a model, whether in one safetensors file or in shards with an index.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/safetensors.h"

namespace quads {

class TensorStore {
 public:
  /// `path` is a .safetensors file, or a model directory with model.safetensors or
  /// model.safetensors.index.json and its shards. Beyond the errors of the files themselves: no
  /// weights there (pickled ones are named and refused), a missing shard, a shard's name that
  /// leaves the directory, a tensor that the index places in a shard without it, or a tensor in a
  /// shard that the index does not place there.
  explicit TensorStore(const std::filesystem::path& path);

  /// Sorted by name. The views live as long as the store.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const TensorView* find(const std::string& name) const;
  /// Error that names path and tensor if there is none.
  const TensorView& at(const std::string& name) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  void open_shards(const std::filesystem::path& index_path);
  void add_file(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace quads
