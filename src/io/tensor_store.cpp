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

constexpr const char* kIndexName = "model.safetensors.index.json";

std::vector<Shard> read_index(const fs::path& index_path) {
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
  std::vector<Shard> shards;
  for (auto& [shard, names] : expected) {
    const fs::path path = index_path.parent_path() / shard;
    require(fs::exists(path), "{}: shard '{}' is missing (it should hold tensor '{}')", where,
            shard, *names.begin());
    shards.push_back({path, std::move(names)});
  }
  return shards;
}

}  // namespace

std::vector<Shard> list_shards(const fs::path& path) {
  require(fs::exists(path), "{}: no such file or directory", path.string());
  if (!fs::is_directory(path)) return {{path, std::nullopt}};
  if (fs::exists(path / "model.safetensors")) return {{path / "model.safetensors", std::nullopt}};
  require(fs::exists(path / kIndexName), "{}: holds neither model.safetensors nor {}{}",
          path.string(), kIndexName, pickled_weights(path));
  return read_index(path / kIndexName);
}

SafetensorsFile open_shard(const Shard& shard) {
  SafetensorsFile file(shard.path);
  if (!shard.tensors) return file;
  std::set<std::string> missing = *shard.tensors;
  for (const TensorView& tensor : file.tensors()) {
    require(missing.erase(tensor.name) == 1, "{}: tensor '{}' is not placed there by {}",
            shard.path.string(), tensor.name, kIndexName);
  }
  require(missing.empty(), "{}: tensor '{}' is not in it, though {} says so", shard.path.string(),
          missing.empty() ? "" : *missing.begin(), kIndexName);
  return file;
}

TensorStore::TensorStore(const fs::path& path) : path_(path) {
  for (const Shard& shard : list_shards(path)) {
    const SafetensorsFile& file = files_.emplace_back(open_shard(shard));
    tensors_.insert(tensors_.end(), file.tensors().begin(), file.tensors().end());
    file.file().release(file.file().bytes());  // the header's pages
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  for (size_t i = 0; i < tensors_.size(); ++i) {
    by_name_.emplace(tensors_[i].name, i);
  }
}

const TensorView* TensorStore::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

void TensorStore::release(std::span<const std::byte> part) const {
  for (const SafetensorsFile& shard : files_) {
    if (shard.file().contains(part.data())) shard.file().release(part);
  }
}

const TensorView& TensorStore::at(const std::string& name) const {
  const TensorView* tensor = find(name);
  require(tensor != nullptr, "{}: tensor '{}' is missing", path_.string(), name);
  return *tensor;
}

}  // namespace quads
