#include "model/parameters.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "base/random.h"
#include "io/safetensors_writer.h"
#include "numerics/math.h"

namespace quads {
namespace {

float half_to_float(uint16_t h) {
  _Float16 value;
  static_assert(sizeof(value) == sizeof(h));
  std::memcpy(&value, &h, sizeof(h));
  return static_cast<float>(value);
}

// Standard normal from two words: Box-Muller with this project's own log and cosine.
float normal(uint32_t a, uint32_t b) {
  const float u = (static_cast<float>(a >> 8) + 0.5F) * 0x1p-24F;
  const double angle = 6.283185307179586 * (static_cast<double>(b) * 0x1p-32);
  return std::sqrt(-2.0F * log_f32(u)) * static_cast<float>(cos_f64(angle));
}

}  // namespace

int64_t ParameterLayout::add(std::string name, int64_t rows, int64_t cols,
                             std::vector<ParameterPart> parts) {
  Parameter parameter{std::move(name), rows, cols, total, false, std::move(parts)};
  total += parameter.padded_size();
  parameters.push_back(std::move(parameter));
  return std::ssize(parameters) - 1;
}

int64_t ParameterLayout::add_vector(const std::string& name, int64_t cols) {
  Parameter parameter{name, 1, cols, total, true, {{name, 0, 1}}};
  total += parameter.padded_size();
  parameters.push_back(std::move(parameter));
  return std::ssize(parameters) - 1;
}

int64_t ParameterLayout::add_matrix(const std::string& name, int64_t rows, int64_t cols) {
  return add(name, rows, cols, {{name, 0, rows}});
}

ParameterLayout::ParameterLayout(const ModelConfig& c) {
  const int64_t hidden = c.hidden_size;
  const int64_t q_width = c.num_attention_heads * c.head_dim;
  const int64_t kv_width = c.num_key_value_heads * c.head_dim;
  const auto require_tiles = [](const char* key, int64_t value) {
    require(value % 32 == 0, "config.json: {} is {}; the kernels need a multiple of 32", key,
            value);
  };
  require_tiles("hidden_size", hidden);
  require(c.head_dim % 16 == 0, "config.json: head_dim is {}; the kernels need a multiple of 16",
          c.head_dim);
  require_tiles("num_attention_heads * head_dim", q_width);

  embedding = add_matrix("model.embed_tokens.weight", c.vocab_size, hidden);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string prefix = fmt::format("model.layers.{}.", l);
    const auto gated = [&](const std::string& at, int64_t width) {
      return add(at + "gate_up_proj", 2 * width, hidden,
                 {{at + "gate_proj.weight", 0, width}, {at + "up_proj.weight", width, width}});
    };
    Layer layer;
    layer.input_norm = add_vector(prefix + "input_layernorm.weight", hidden);
    layer.qkv = add(prefix + "self_attn.qkv_proj", q_width + 2 * kv_width, hidden,
                    {{prefix + "self_attn.q_proj.weight", 0, q_width},
                     {prefix + "self_attn.k_proj.weight", q_width, kv_width},
                     {prefix + "self_attn.v_proj.weight", q_width + kv_width, kv_width}});
    layer.q_norm = add_vector(prefix + "self_attn.q_norm.weight", c.head_dim);
    layer.k_norm = add_vector(prefix + "self_attn.k_norm.weight", c.head_dim);
    layer.o = add_matrix(prefix + "self_attn.o_proj.weight", hidden, q_width);
    layer.post_norm = add_vector(prefix + "post_attention_layernorm.weight", hidden);
    if (c.is_sparse(l)) {
      require_tiles("moe_intermediate_size", c.moe_intermediate_size);
      layer.router = add_matrix(prefix + "mlp.gate.weight", c.num_experts, hidden);
      for (int64_t e = 0; e < c.num_experts; ++e) {
        const std::string at = fmt::format("{}mlp.experts.{}.", prefix, e);
        layer.gate_up.push_back(gated(at, c.moe_intermediate_size));
        layer.down.push_back(add_matrix(at + "down_proj.weight", hidden, c.moe_intermediate_size));
      }
    } else {
      require_tiles("intermediate_size", c.intermediate_size);
      layer.router = -1;
      layer.gate_up.push_back(gated(prefix + "mlp.", c.intermediate_size));
      layer.down.push_back(
          add_matrix(prefix + "mlp.down_proj.weight", hidden, c.intermediate_size));
    }
    layers.push_back(std::move(layer));
  }
  final_norm = add_vector("model.norm.weight", hidden);
  head = c.tie_word_embeddings ? embedding : add_matrix("lm_head.weight", c.vocab_size, hidden);
}

Parameters::Parameters(const ModelConfig& config)
    : config_(config), layout_(config), values_(layout_.total) {}

void Parameters::initialise(uint64_t seed) {
  const auto std_dev = static_cast<float>(config_.initializer_range);
  for (size_t p = 0; p < layout_.parameters.size(); ++p) {
    const Parameter& parameter = layout_.parameters[p];
    Bf16* out = values() + parameter.offset;
    if (parameter.vector) {
      std::fill_n(out, parameter.cols, to_bf16(1.0F));
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
  std::unordered_map<std::string_view, const NamedTensor*> by_name;
  for (const NamedTensor& tensor : tensors) {
    require(by_name.emplace(tensor.name, &tensor).second, "tensor {} is given twice", tensor.name);
  }
  // Check everything before anything is changed.
  size_t used = 0;
  const auto for_parts = [&](auto&& body) {
    for (const Parameter& parameter : layout_.parameters) {
      for (const ParameterPart& part : parameter.parts) body(parameter, part);
    }
  };
  for_parts([&](const Parameter& parameter, const ParameterPart& part) {
    const auto found = by_name.find(part.name);
    require(found != by_name.end(), "tensor {} is missing", part.name);
    const NamedTensor& tensor = *found->second;
    const std::vector<int64_t> expected = parameter.vector
                                              ? std::vector<int64_t>{parameter.cols}
                                              : std::vector<int64_t>{part.rows, parameter.cols};
    require(std::ranges::equal(tensor.shape, expected),
            "tensor {} has shape [{}], the configuration says [{}]", part.name,
            fmt::join(tensor.shape, ", "), fmt::join(expected, ", "));
    for (int64_t i = 0; i < part.rows * parameter.cols; ++i) {
      const float x = tensor.bf16 ? to_float(tensor.bf16[i]) : tensor.f32[i];
      const bool fits = std::isfinite(x) && std::isfinite(to_float(to_bf16(x)));
      require(fits, "tensor {} holds {} at row {}, column {}", part.name, x, i / parameter.cols,
              i % parameter.cols);
    }
    ++used;
  });
  if (used != by_name.size()) {
    for_parts([&](const Parameter&, const ParameterPart& part) { by_name.erase(part.name); });
    fail("tensor {} is not part of this model", by_name.begin()->first);
  }
  for_parts([&](const Parameter& parameter, const ParameterPart& part) {
    const NamedTensor& tensor = *by_name.at(part.name);
    Bf16* out = values() + parameter.offset + part.row_begin * parameter.cols;
    const int64_t count = part.rows * parameter.cols;
    if (tensor.bf16) {
      std::copy_n(tensor.bf16, count, out);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = to_bf16(tensor.f32[i]);
    }
  });
}

Parameters load_parameters(const std::filesystem::path& directory) {
  Parameters parameters(load_model_config(directory));
  const TensorStore store(directory);
  const std::string head_name = "lm_head.weight";
  const bool tied = parameters.config().tie_word_embeddings;

  std::vector<NamedTensor> tensors;
  std::vector<std::vector<Bf16>> copies;  // of what is not BF16 or not aligned
  std::vector<std::vector<float>> floats;
  for (const TensorView& view : store.tensors()) {
    if (tied && view.name == head_name) {
      const TensorView* embedding = store.find("model.embed_tokens.weight");
      require(embedding && embedding->dtype == view.dtype && embedding->nbytes == view.nbytes &&
                  std::memcmp(embedding->data, view.data, view.nbytes) == 0,
              "{}: tie_word_embeddings is true, but {} differs from model.embed_tokens.weight",
              directory.string(), head_name);
      continue;
    }
    NamedTensor tensor{.name = view.name, .shape = view.shape};
    if (view.dtype == DType::kBF16 && view.is_aligned()) {
      tensor.bf16 = reinterpret_cast<const Bf16*>(view.data);
    } else if (view.dtype == DType::kBF16 || view.dtype == DType::kF16) {
      std::vector<Bf16> copy(static_cast<size_t>(view.num_elements()));
      view.copy_to(copy.data());
      if (view.dtype == DType::kF16) {
        for (Bf16& x : copy) x = to_bf16(half_to_float(x.bits));
      }
      tensor.bf16 = copies.emplace_back(std::move(copy)).data();
    } else if (view.dtype == DType::kF32) {
      std::vector<float> copy(static_cast<size_t>(view.num_elements()));
      view.copy_to(copy.data());
      tensor.f32 = floats.emplace_back(std::move(copy)).data();
    } else {
      fail("{}: tensor {} is {}; weights are read as BF16, F16 or F32", directory.string(),
           view.name, describe(view));
    }
    tensors.push_back(tensor);
  }
  try {
    parameters.assign(tensors);
  } catch (const Error& error) {
    fail("{}: {}", directory.string(), error.what());
  }
  return parameters;
}

void save_parameters(const Parameters& parameters, const std::filesystem::path& directory) {
  save_model_config(parameters.config(), directory);
  std::vector<TensorView> views;
  for (const Parameter& parameter : parameters.layout().parameters) {
    for (const ParameterPart& part : parameter.parts) {
      TensorView view;
      view.name = part.name;
      view.dtype = DType::kBF16;
      view.shape = parameter.vector ? std::vector<int64_t>{parameter.cols}
                                    : std::vector<int64_t>{part.rows, parameter.cols};
      view.data = reinterpret_cast<const std::byte*>(parameters.values() + parameter.offset +
                                                     part.row_begin * parameter.cols);
      view.nbytes = static_cast<size_t>(part.rows * parameter.cols) * sizeof(Bf16);
      views.push_back(std::move(view));
    }
  }
  write_model_tensors(directory, views);
}

}  // namespace quads
