// A model's tensors from one file or from shards with an index.
#include "io/tensor_store.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "io/json.h"

namespace quads {
namespace {

namespace fs = std::filesystem;

// The pickled weights that lie in `directory`, for the message that refuses them.
std::string pickled_weights(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt") {
      return fmt::format(" ('{}' is a pickle, which is never loaded: convert it to safetensors)",
                         entry.path().filename().string());
    }
  }
  return "";
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

TensorStore::TensorStore(const fs::path& path) : path_(path) {
  require(fs::exists(path), "{}: no such file or directory", path.string());
  if (!fs::is_directory(path)) {
    add_file(path);
  } else if (fs::exists(path / "model.safetensors")) {
    add_file(path / "model.safetensors");
  } else {
    const fs::path index = path / "model.safetensors.index.json";
    require(fs::exists(index), "{}: holds neither model.safetensors nor {}{}", path.string(),
            index.filename().string(), pickled_weights(path));
    open_shards(index);
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  for (size_t i = 0; i < tensors_.size(); ++i) {
    by_name_.emplace(tensors_[i].name, i);
  }
}

void TensorStore::open_shards(const fs::path& index_path) {
  const std::string where = index_path.string();
  const Json index = read_json_file(index_path);
  const Json weight_map = get<Json>(index, "weight_map", where);
  require(weight_map.is_object(), "{}: 'weight_map' is not an object", where);
  std::map<std::string, std::set<std::string>> expected;  // shard -> its tensors
  for (const auto& [name, value] : weight_map.items()) {
    const auto shard = json_to<std::string>(value, fmt::format("{}: tensor '{}'", where, name));
    require(is_plain_name(shard), "{}: tensor '{}': shard '{}' is not a plain file name", where,
            name, shard);
    expected[shard].insert(name);
  }
  for (auto& [shard, names] : expected) {
    const fs::path shard_path = index_path.parent_path() / shard;
    require(fs::exists(shard_path), "{}: shard '{}' is missing (it should hold tensor '{}')", where,
            shard, *names.begin());
    add_file(shard_path);
    for (const TensorView& tensor : files_.back().tensors()) {
      require(names.erase(tensor.name) == 1, "{}: tensor '{}' is not placed there by {}",
              shard_path.string(), tensor.name, index_path.filename().string());
    }
    require(names.empty(), "{}: tensor '{}' is not in it, though {} says so", shard_path.string(),
            names.empty() ? "" : *names.begin(), index_path.filename().string());
  }
}

void TensorStore::add_file(const fs::path& path) {
  const SafetensorsFile& file = files_.emplace_back(path);
  tensors_.insert(tensors_.end(), file.tensors().begin(), file.tensors().end());
}

const TensorView* TensorStore::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

const TensorView& TensorStore::at(const std::string& name) const {
  const TensorView* tensor = find(name);
  require(tensor != nullptr, "{}: tensor '{}' is missing", path_.string(), name);
  return *tensor;
}

}  // namespace quads
