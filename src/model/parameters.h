// The parameters of a model: one flat BF16 array that linear layers of one product share (q, k, v;
// gate, up), and the Hugging Face tensors that lie in it.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "io/model_config.h"
#include "io/tensor_store.h"
#include "numerics/bf16.h"

namespace quads {

class ParameterFiles;

/// A Hugging Face tensor: rows row_begin.. of its parameter.
struct ParameterPart {
  std::string name;  // "model.layers.0.mlp.experts.3.gate_proj.weight"
  int64_t row_begin;
  int64_t rows;
};

/// A matrix [rows, cols] (norm weights: [1, cols], biases: [rows, 1]) at `offset` of the flat
/// array; the space behind it up to a multiple of 32 rows stays zero, so that kernels may work on
/// whole tiles.
struct Parameter {
  std::string name;  // "model.layers.0.mlp.experts.3.gate_up_proj"
  int64_t rows, cols, offset;
  bool vector;    // a norm's weight or a bias: one-dimensional in files
  float initial;  // what a vector starts with
  std::vector<ParameterPart> parts;
  int64_t size() const { return rows * cols; }
  int64_t padded_size() const {
    return vector ? (size() + 15) / 16 * 16 : (rows + 31) / 32 * 32 * cols;
  }
  /// The shape of a part in files.
  std::vector<int64_t> part_shape(const ParameterPart& part) const {
    return vector ? std::vector{part.rows * cols} : std::vector{part.rows, cols};
  }
};

/// "tensor T, row R, column C" of element `index` of a parameter, T as files name it.
std::string locate(const Parameter& parameter, int64_t index);

/// Where each parameter of a model lies. Pure function of the configuration.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  struct Layer {
    int64_t input_norm, qkv, o, post_norm;
    int64_t qkv_bias = -1, q_norm = -1, k_norm = -1;  // -1: the model has none
    int64_t router = -1;  // -1: dense; its last row is the shared expert's gate
    /// One an expert, then the shared expert's if there is one; one in all when dense.
    std::vector<int64_t> gate_up, down;
  };
  // Indices into `parameters`.
  int64_t embedding, final_norm, head;  // head == embedding when tied
  std::vector<Layer> layers;
  std::vector<Parameter> parameters;
  int64_t total = 0;  // elements of the flat array

  const Parameter& at(int64_t index) const { return parameters[static_cast<size_t>(index)]; }

 private:
  Layer add_layer(const ModelConfig& config, int64_t index);
  int64_t add(Parameter parameter);
  int64_t add_parts(const std::string& name, int64_t cols, std::vector<ParameterPart> parts);
  int64_t add_vector(const std::string& name, int64_t cols);
  int64_t add_matrix(const std::string& name, int64_t rows, int64_t cols);
};

/// A tensor given by name, BF16 or FP32, row-major.
struct NamedTensor {
  std::string_view name;
  std::span<const int64_t> shape;
  const Bf16* bf16 = nullptr;  // one of the two
  const float* f32 = nullptr;
};

/// Configuration, layout and BF16 values.
class Parameters {
 public:
  explicit Parameters(const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  Bf16* values() { return values_.data(); }
  const Bf16* values() const { return values_.data(); }
  /// Null for an index below 0.
  const Bf16* of(int64_t index) const {
    return index < 0 ? nullptr : values() + layout_.at(index).offset;
  }

  /// Appends a view of each Hugging Face tensor of the parameter.
  void add_views(int64_t index, std::vector<TensorView>& views) const;

  /// Fills with seeded Gaussian weights (standard deviation config.initializer_range; norms 1,
  /// biases 0);
  /// each element depends on its parameter and index alone.
  void initialise(uint64_t seed,
                  const std::function<void(int64_t done, int64_t total)>& on_progress = {});

  /// Copies in every tensor of the model. Error, naming the tensor, if one is missing, given twice,
  /// unknown, of another shape, or holds a NaN or an infinity (with row and column); nothing is
  /// changed then.
  void assign(std::span<const NamedTensor> tensors);

 private:
  ModelConfig config_;
  ParameterLayout layout_;
  AlignedBuffer<Bf16> values_;
};

/// All that lies in the files (model/parameter_files.h), beside few of the files' own pages.
Parameters load_parameters(const ParameterFiles& files);
/// Those of a Hugging Face directory: config.json and weights in BF16, F16 or F32.
Parameters load_parameters(const std::filesystem::path& directory);

/// Writes config.json and model.safetensors (sharded above 5 GB) into an existing directory.
void save_parameters(const Parameters& parameters, const std::filesystem::path& directory);

}  // namespace quads
