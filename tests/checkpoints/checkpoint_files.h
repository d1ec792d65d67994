// What the tests of this folder share: a model directory, its quantised copies, and files whose
// tensors are changed one by one.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "checkpoints/load_weights.h"
#include "checkpoints/write_quantised.h"
#include "io/tensor_store.h"
#include "tests/model/model_files.h"

namespace quads::testing {

/// A tensor with bytes of its own.
struct OwnedTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  template <class T>
  T& as(int64_t index) {
    return reinterpret_cast<T*>(bytes.data())[index];
  }
};
using OwnedTensors = std::map<std::string, OwnedTensor>;

inline OwnedTensors read_tensors(const std::filesystem::path& directory) {
  OwnedTensors result;
  const TensorStore store(directory);
  for (const TensorView& view : store.tensors()) {
    OwnedTensor& tensor = result[view.name];
    tensor = {view.dtype, view.shape, std::vector<std::byte>(view.nbytes)};
    view.copy_to(tensor.bytes.data());
  }
  return result;
}

inline void write_tensors(const std::filesystem::path& directory, const OwnedTensors& tensors,
                          size_t shard = size_t{1} << 40) {
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    views.push_back({name, tensor.dtype, tensor.shape, tensor.bytes.data(), tensor.bytes.size()});
  }
  write_model_tensors(directory, views, shard);
}

/// Distinct for every layer and site, a power of two.
inline InputAmax input_amax(const ModelConfig& config) {
  InputAmax amax;
  for (int64_t i = 0; i < config.num_hidden_layers * kSites; ++i) {
    amax.values.push_back(std::ldexp(2688.0F, static_cast<int>(i % 7)));
  }
  return amax;
}

/// A model in `dir`/model and a quantised copy in `dir`/<name>.
class Quantised {
 public:
  explicit Quantised(const ModelConfig& config = moe_config())
      : parameters(random_parameters(config)), amax(input_amax(config)) {
    std::filesystem::create_directory(source());
    save_parameters(parameters, source());
  }
  std::filesystem::path source() const { return dir / "model"; }

  std::filesystem::path write(WriteQuantisedOptions options, const std::string& name = "out",
                              int threads = 1) {
    const std::filesystem::path out = dir / name;
    std::filesystem::remove_all(out);
    std::filesystem::create_directory(out);
    kernels::CpuRuntime runtime(kernels::best_isa(), threads);
    write_quantised(runtime.context(), parameters, source(), out, options);
    return out;
  }
  std::filesystem::path write(CheckpointFormat format) {
    WriteQuantisedOptions options;
    options.format = format;
    if (format != CheckpointFormat::kFp8) options.input_amax = &amax;
    return write(options);
  }

  TempDir dir;
  Parameters parameters;
  InputAmax amax;
};

inline constexpr CheckpointFormat kAllFormats[] = {CheckpointFormat::kNvfp4ModelOpt,
                                                   CheckpointFormat::kNvfp4CompressedTensors,
                                                   CheckpointFormat::kFp8};

}  // namespace quads::testing
