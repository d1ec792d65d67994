// The parameters of a model that lie in files: any range of the flat array, read when it is asked
// for. What a host loads all of, and a device a layer at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/tensor_store.h"
#include "model/parameters.h"
#include "model/tensor_map.h"

namespace quads {

/// Filled in two steps: all tensors are added, which checks names and shapes, then `finish`. After
/// that `read` may be called from several threads. Of the files' pages no more than a few MiB a
/// thread are in memory, but for what headers and checks touched.
class ParameterFiles {
 public:
  /// Elements [begin, begin + count) of a tensor as the parameters hold it, row-major.
  using ReadElements = std::function<void(int64_t begin, int64_t count, Bf16* out)>;

  /// Maps the files; no tensor is added yet. Errors as of TensorStore.
  ParameterFiles(const ModelConfig& config, const std::filesystem::path& directory);
  ParameterFiles(const ParameterFiles&) = delete;
  ParameterFiles& operator=(const ParameterFiles&) = delete;

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  const TensorStore& store() const { return store_; }
  /// The shape that the configuration gives a tensor; null if the model has none of that name.
  const std::vector<int64_t>* shape(const std::string& name) const { return map_.shape(name); }

  /// One of the store's tensors, BF16, F16 or F32. A tied head is one too. Errors as
  /// TensorMap::take's, and on another type.
  void add(const TensorView& view);
  /// One that is stored in another form; `name` is the parameters' name for it.
  void add(std::string_view name, std::span<const int64_t> shape, ReadElements read);
  /// Error naming a tensor that was not added, or if a tied head that is stored besides differs
  /// from the embedding.
  void finish();

  /// Elements [offset, offset + count) of the flat array, zeros where padding lies. Error, the
  /// directory in front, naming tensor, row and column of a value that is not finite.
  void read(int64_t offset, int64_t count, Bf16* out) const;

  /// Runs `action`; its errors have the directory in front.
  template <class Action>
  void naming_directory(const Action& action) const {
    try {
      action();
    } catch (const Error& error) {
      fail("{}: {}", store_.path().string(), error.what());
    }
  }

 private:
  // Elements of the flat array that lie one behind the other in a tensor.
  struct Stretch {
    int64_t offset, count;
    size_t tensor;
    int64_t begin;  // in the tensor
  };
  void read_elements(int64_t offset, int64_t count, Bf16* out) const;
  void require_tied() const;

  ModelConfig config_;
  ParameterLayout layout_;
  TensorMap map_;
  TensorStore store_;
  std::vector<ReadElements> tensors_;
  std::vector<Stretch> stretches_;  // finished: by offset
  const TensorView* tied_head_ = nullptr;
};

/// The weights (BF16, F16 or F32) of a Hugging Face directory. Error, naming the tensor, if one is
/// missing, unknown, given twice or of another shape.
std::unique_ptr<ParameterFiles> open_parameters(const std::filesystem::path& directory);

}  // namespace quads
