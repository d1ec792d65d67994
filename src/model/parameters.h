// The parameters of a model: one flat BF16 array that linear layers of one product share (q, k, v;
// gate, up), and the Hugging Face tensors that lie in it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "io/model_config.h"
#include "io/tensor_store.h"
#include "numerics/bf16.h"

namespace quads {

/// A Hugging Face tensor: rows row_begin.. of its parameter.
struct ParameterPart {
  std::string name;  // "model.layers.0.mlp.experts.3.gate_proj.weight"
  int64_t row_begin;
  int64_t rows;
};

/// A matrix [rows, cols] (norm weights: [1, cols]) at `offset` of the flat array; the space behind
/// it up to a multiple of 32 rows stays zero, so that kernels may work on whole tiles.
struct Parameter {
  std::string name;  // "model.layers.0.mlp.experts.3.gate_up_proj"
  int64_t rows, cols, offset;
  bool vector;  // a norm's weight: one-dimensional in files
  std::vector<ParameterPart> parts;
  int64_t size() const { return rows * cols; }
  int64_t padded_size() const {
    return vector ? (cols + 15) / 16 * 16 : (rows + 31) / 32 * 32 * cols;
  }
};

/// Where each parameter of a model lies. Pure function of the configuration.
class ParameterLayout {
 public:
  explicit ParameterLayout(const ModelConfig& config);

  struct Layer {
    int64_t input_norm, qkv, q_norm, k_norm, o;
    int64_t post_norm, router;           // router: -1 when dense
    std::vector<int64_t> gate_up, down;  // one an expert; one in all when dense
  };
  // Indices into `parameters`.
  int64_t embedding, final_norm, head;  // head == embedding when tied
  std::vector<Layer> layers;
  std::vector<Parameter> parameters;
  int64_t total = 0;  // elements of the flat array

  const Parameter& at(int64_t index) const { return parameters[static_cast<size_t>(index)]; }

 private:
  int64_t add(std::string name, int64_t rows, int64_t cols, std::vector<ParameterPart> parts);
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
  const Bf16* of(int64_t index) const { return values() + layout_.at(index).offset; }

  /// Fills with seeded Gaussian weights (standard deviation config.initializer_range; norms 1);
  /// each element depends on its parameter and index alone.
  void initialise(uint64_t seed);

  /// Copies in every tensor of the model. Error, naming the tensor, if one is missing, given twice,
  /// unknown, of another shape, or holds a NaN or an infinity (with row and column); nothing is
  /// changed then.
  void assign(std::span<const NamedTensor> tensors);

 private:
  ModelConfig config_;
  ParameterLayout layout_;
  AlignedBuffer<Bf16> values_;
};

/// Reads config.json and the weights (BF16, F16 or F32; others are rounded to BF16) of a Hugging
/// Face directory. A tied head that is stored besides must equal the embedding.
Parameters load_parameters(const std::filesystem::path& directory);

/// Writes config.json and model.safetensors (sharded above 5 GB) into an existing directory.
void save_parameters(const Parameters& parameters, const std::filesystem::path& directory);

}  // namespace quads
