// A folder with a model's files for tests, in the groupings that transformers writes.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "io/safetensors_writer.h"
#include "tests/io/test_files.h"
#include "tests/model/side.h"

namespace quads::testing {

inline Parameters random_parameters(const ModelConfig& config) {
  Parameters parameters(config);
  randomise(parameters, 5);
  return parameters;
}

/// A model of 50 MB, which can be told from what a program takes anyway.
inline ModelConfig large_config() {
  ModelConfig config = moe_config();
  config.hidden_size = config.moe_intermediate_size = 512;
  config.num_experts = 16;
  return config;
}

inline bool same_values(const Parameters& a, const Parameters& b) {
  return a.layout().total == b.layout().total &&
         std::equal(a.values(), a.values() + a.layout().total, b.values());
}

class ModelFiles {
 public:
  const std::filesystem::path& path() const { return directory_.path(); }

  /// The tensors that save_parameters writes.
  static std::vector<TensorView> views(const Parameters& parameters) {
    std::vector<TensorView> result;
    for (int64_t i = 0; i < std::ssize(parameters.layout().parameters); ++i) {
      parameters.add_views(i, result);
    }
    return result;
  }
  /// The same with every sparse layer's experts in two tensors, as transformers 5 holds them, and
  /// Mixtral's router under the name of the rest.
  std::vector<TensorView> fused_views(const Parameters& parameters) {
    std::vector<TensorView> result;
    for (TensorView& view : views(parameters)) {
      if (view.name.find(".experts.") != std::string::npos) continue;
      const size_t at = view.name.find("block_sparse_moe");
      if (at != std::string::npos) view.name.replace(at, 16, "mlp");
      result.push_back(std::move(view));
    }
    const ModelConfig& config = parameters.config();
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      if (!config.is_sparse(l)) continue;
      const ParameterLayout::Layer& layer = parameters.layout().layers[static_cast<size_t>(l)];
      const auto fuse = [&](const char* name, const std::vector<int64_t>& experts) {
        std::vector<Bf16>& all = fused.emplace_back();
        const Parameter& first = parameters.layout().at(experts[0]);
        for (int64_t e = 0; e < config.num_experts; ++e) {
          const Bf16* values = parameters.of(experts[static_cast<size_t>(e)]);
          all.insert(all.end(), values, values + first.size());
        }
        TensorView& view = result.emplace_back();
        view.name = fmt::format("model.layers.{}.mlp.experts.{}", l, name);
        view.dtype = DType::kBF16;
        view.shape = {config.num_experts, first.rows, first.cols};
        view.data = reinterpret_cast<const std::byte*>(all.data());
        view.nbytes = all.size() * sizeof(Bf16);
      };
      fuse("gate_up_proj", layer.gate_up);
      fuse("down_proj", layer.down);
    }
    return result;
  }
  void write(const Parameters& parameters, const std::vector<TensorView>& tensors,
             size_t shard = size_t{1} << 40) const {
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      std::filesystem::remove(entry);
    }
    save_model_config(parameters.config(), path());
    write_model_tensors(path(), tensors, shard);
  }

  std::deque<std::vector<Bf16>> fused;  // what fused_views views, in its order

 private:
  TempDir directory_;
};

}  // namespace quads::testing
