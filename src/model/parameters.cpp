#include "model/parameters.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "io/safetensors_writer.h"
#include "model/load_tensor.h"
#include "model/parameter_files.h"
#include "model/tensor_map.h"
#include "numerics/math.h"

namespace quads {
namespace {

// Standard normal from two words: Box-Muller with this project's own log and cosine.
float normal(uint32_t a, uint32_t b) {
  const float u = (static_cast<float>(a >> 8) + 0.5F) * 0x1p-24F;
  const double angle = 6.283185307179586 * (static_cast<double>(b) * 0x1p-32);
  return std::sqrt(-2.0F * log_f32(u)) * static_cast<float>(cos_f64(angle));
}

void require_tiles(const char* key, int64_t value) {
  require(value % 32 == 0, "config.json: {} is {}; the kernels need a multiple of 32", key, value);
}

}  // namespace

int64_t ParameterLayout::add(Parameter parameter) {
  parameter.offset = total;
  total += parameter.padded_size();
  parameters.push_back(std::move(parameter));
  return std::ssize(parameters) - 1;
}

int64_t ParameterLayout::add_vector(const std::string& name, int64_t cols) {
  return add({name, 1, cols, 0, true, 1.0F, {{name, 0, 1}}});
}

int64_t ParameterLayout::add_matrix(const std::string& name, int64_t rows, int64_t cols) {
  return add_parts(name, cols, {{name, 0, rows}});
}

int64_t ParameterLayout::add_parts(const std::string& name, int64_t cols,
                                   std::vector<ParameterPart> parts) {
  const int64_t rows = parts.back().row_begin + parts.back().rows;
  return add({name, rows, cols, 0, false, 0.0F, std::move(parts)});
}

std::string locate(const Parameter& parameter, int64_t index) {
  const int64_t row = index / parameter.cols;
  for (const ParameterPart& part : parameter.parts) {
    if (row < part.row_begin + part.rows) {
      return fmt::format("tensor {}, row {}, column {}", part.name, row - part.row_begin,
                         index % parameter.cols);
    }
  }
  return parameter.name;
}

ParameterLayout::Layer ParameterLayout::add_layer(const ModelConfig& c, int64_t index) {
  const int64_t hidden = c.hidden_size;
  const int64_t q_width = c.num_attention_heads * c.head_dim;
  const int64_t kv_width = c.num_key_value_heads * c.head_dim;
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const std::string attention = prefix + "self_attn.";
  Layer layer;
  layer.input_norm = add_vector(prefix + "input_layernorm.weight", hidden);
  const auto qkv_parts = [&](const char* suffix) {
    return std::vector<ParameterPart>{
        {fmt::format("{}q_proj.{}", attention, suffix), 0, q_width},
        {fmt::format("{}k_proj.{}", attention, suffix), q_width, kv_width},
        {fmt::format("{}v_proj.{}", attention, suffix), q_width + kv_width, kv_width}};
  };
  layer.qkv = add_parts(attention + "qkv_proj", hidden, qkv_parts("weight"));
  if (c.qkv_bias) {
    layer.qkv_bias =
        add({attention + "qkv_bias", q_width + 2 * kv_width, 1, 0, true, 0.0F, qkv_parts("bias")});
  }
  if (c.qk_norm() != QkNorm::kNone) {
    const bool whole = c.qk_norm() == QkNorm::kProjection;
    layer.q_norm = add_vector(attention + "q_norm.weight", whole ? q_width : c.head_dim);
    layer.k_norm = add_vector(attention + "k_norm.weight", whole ? kv_width : c.head_dim);
  }
  layer.o = add_matrix(attention + "o_proj.weight", hidden, q_width);
  layer.post_norm = add_vector(prefix + "post_attention_layernorm.weight", hidden);

  const bool mixtral = c.architecture == Architecture::kMixtral;
  const std::string mlp = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
  const auto add_expert = [&](const std::string& at, const char* size_key, int64_t width) {
    require_tiles(size_key, width);
    layer.gate_up.push_back(
        add_parts(at + "gate_up_proj", hidden,
                  {{at + (mixtral ? "w1.weight" : "gate_proj.weight"), 0, width},
                   {at + (mixtral ? "w3.weight" : "up_proj.weight"), width, width}}));
    layer.down.push_back(
        add_matrix(at + (mixtral ? "w2.weight" : "down_proj.weight"), hidden, width));
  };
  if (!c.is_sparse(index)) {
    add_expert(mlp, "intermediate_size", c.intermediate_size);
    return layer;
  }
  std::vector<ParameterPart> router = {{mlp + "gate.weight", 0, c.num_experts}};
  if (c.has_shared_expert(index)) {
    router.push_back({mlp + "shared_expert_gate.weight", c.num_experts, 1});
  }
  layer.router = add_parts(mlp + "gate.weight", hidden, std::move(router));
  for (int64_t e = 0; e < c.num_experts; ++e) {
    add_expert(fmt::format("{}experts.{}.", mlp, e), "moe_intermediate_size",
               c.moe_intermediate_size);
  }
  if (c.has_shared_expert(index)) {
    add_expert(mlp + "shared_expert.", "shared_expert_intermediate_size",
               c.shared_expert_intermediate_size);
  }
  return layer;
}

ParameterLayout::ParameterLayout(const ModelConfig& c) {
  require_tiles("hidden_size", c.hidden_size);
  require(c.head_dim % 16 == 0, "config.json: head_dim is {}; the kernels need a multiple of 16",
          c.head_dim);
  require_tiles("num_attention_heads * head_dim", c.num_attention_heads * c.head_dim);
  embedding = add_matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) layers.push_back(add_layer(c, l));
  final_norm = add_vector("model.norm.weight", c.hidden_size);
  head =
      c.tie_word_embeddings ? embedding : add_matrix("lm_head.weight", c.vocab_size, c.hidden_size);
}

Parameters::Parameters(const ModelConfig& config)
    : config_(config), layout_(config), values_(layout_.total) {}

void Parameters::initialise(uint64_t seed,
                            const std::function<void(int64_t done, int64_t total)>& on_progress) {
  const auto std_dev = static_cast<float>(config_.initializer_range);
  for (size_t p = 0; p < layout_.parameters.size(); ++p) {
    const Parameter& parameter = layout_.parameters[p];
    Bf16* out = values() + parameter.offset;
    if (on_progress) on_progress(parameter.offset, layout_.total);
    if (parameter.vector) {
      std::fill_n(out, parameter.size(), to_bf16(parameter.initial));
      continue;
    }
    for (int64_t i = 0; i < parameter.size(); i += 2) {
      const auto words = random_words(seed, RandomStream::kInit, static_cast<uint64_t>(i) / 2,
                                      static_cast<uint32_t>(p));
      out[i] = to_bf16(std_dev * normal(words[0], words[1]));
      if (i + 1 < parameter.size()) out[i + 1] = to_bf16(std_dev * normal(words[2], words[3]));
    }
  }
}

void Parameters::assign(std::span<const NamedTensor> tensors) {
  // Check everything before anything is changed.
  TensorMap map(config_, layout_);
  std::vector<const TensorPlace*> places;
  for (const NamedTensor& tensor : tensors) {
    places.push_back(&map.take(tensor.name, tensor.shape));
    int64_t count = 1;
    for (int64_t extent : tensor.shape) count *= extent;
    for (int64_t i = 0; i < count; ++i) {
      const float x = tensor.bf16 ? to_float(tensor.bf16[i]) : tensor.f32[i];
      require_finite(x, tensor.name, i, tensor.shape.back());
    }
  }
  map.require_complete();
  for (size_t t = 0; t < tensors.size(); ++t) {
    const NamedTensor& tensor = tensors[t];
    int64_t read = 0;
    for (const TensorPiece& piece : places[t]->pieces) {
      const int64_t count = piece.rows * layout_.at(piece.parameter).cols;
      Bf16* out = values() + map.offset_of(piece);
      if (tensor.bf16) {
        std::copy_n(tensor.bf16 + read, count, out);
      } else {
        for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(tensor.f32[read + i]);
      }
      read += count;
    }
  }
}

Parameters load_parameters(const std::filesystem::path& directory) {
  return load_parameters(*open_parameters(directory));
}

Parameters load_parameters(const ParameterFiles& files) {
  Parameters parameters(files.config());
  files.read(0, files.layout().total, parameters.values());
  return parameters;
}

void Parameters::add_views(int64_t index, std::vector<TensorView>& views) const {
  const Parameter& parameter = layout_.at(index);
  for (const ParameterPart& part : parameter.parts) {
    TensorView view;
    view.name = part.name;
    view.dtype = DType::kBF16;
    view.shape = parameter.part_shape(part);
    view.data = reinterpret_cast<const std::byte*>(of(index) + part.row_begin * parameter.cols);
    view.nbytes = static_cast<size_t>(part.rows * parameter.cols) * sizeof(Bf16);
    views.push_back(std::move(view));
  }
}

void save_parameters(const Parameters& parameters, const std::filesystem::path& directory) {
  save_model_config(parameters.config(), directory);
  std::vector<TensorView> views;
  for (int64_t i = 0; i < std::ssize(parameters.layout().parameters); ++i) {
    parameters.add_views(i, views);
  }
  write_model_tensors(directory, views);
}

}  // namespace quads
