// Header, padding, bytes; and how tensors are dealt out to shards.
#include "io/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json.h"

namespace quads {
namespace {

constexpr size_t kAlignment = 8;

void check_size(const TensorView& tensor) {
  size_t expected = dtype_size(tensor.dtype);
  for (const int64_t extent : tensor.shape) {
    expected *= static_cast<size_t>(extent);
  }
  require(tensor.nbytes == expected, "tensor '{}': {} takes {} bytes, not {}", tensor.name,
          describe(tensor), expected, tensor.nbytes);
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const auto bytes = [&](size_t i) { return tensors[i].data; };
  write_safetensors(path, tensors, bytes, metadata);
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::function<const std::byte*(size_t)>& bytes,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) {
    order.push_back(&tensor);
  }
  std::stable_sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    return dtype_size(a->dtype) > dtype_size(b->dtype);
  });

  Json header = Json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  size_t offset = 0;
  for (const TensorView* tensor : order) {
    check_size(*tensor);
    require(tensor->name != "__metadata__", "{}: a tensor cannot be named '__metadata__'",
            path.string());
    require(!header.contains(tensor->name), "{}: tensor '{}' is given twice", path.string(),
            tensor->name);
    header[tensor->name] = {{"dtype", dtype_name(tensor->dtype)},
                            {"shape", tensor->shape},
                            {"data_offsets", {offset, offset + tensor->nbytes}}};
    offset += tensor->nbytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');

  AtomicFile file(path);
  const auto length = std::bit_cast<std::array<std::byte, 8>>(uint64_t{text.size()});
  file.write(length);
  file.write(text);
  for (const TensorView* tensor : order) {
    file.write({bytes(static_cast<size_t>(tensor - tensors.data())), tensor->nbytes});
  }
  file.commit();
}

void write_model_tensors(const std::filesystem::path& directory,
                         std::span<const TensorView> tensors, size_t max_shard_bytes) {
  size_t total = 0;
  std::vector<std::span<const TensorView>> shards;
  size_t begin = 0;
  size_t shard_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > begin && shard_bytes + tensors[i].nbytes > max_shard_bytes) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      shard_bytes = 0;
    }
    shard_bytes += tensors[i].nbytes;
    total += tensors[i].nbytes;
  }
  shards.push_back(tensors.subspan(begin));
  if (shards.size() == 1) {
    write_safetensors(directory / "model.safetensors", tensors);
    return;
  }
  Json weight_map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(directory / name, shards[i]);
    for (const TensorView& tensor : shards[i]) {
      require(!weight_map.contains(tensor.name), "{}: tensor '{}' is given twice",
              directory.string(), tensor.name);
      weight_map[tensor.name] = name;
    }
  }
  write_json_file(directory / "model.safetensors.index.json",
                  {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}});
}

}  // namespace quads
