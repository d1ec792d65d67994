#include "checkpoints/load_weights.h"

#include <cmath>
#include <cstring>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "checkpoints/quantisable.h"
#include "checkpoints/quantised_tensors.h"
#include "io/tensor_store.h"
#include "model/load_tensor.h"

namespace quads {
namespace {

namespace fs = std::filesystem;

constexpr CheckpointFormat kFormats[] = {CheckpointFormat::kNvfp4ModelOpt,
                                         CheckpointFormat::kNvfp4CompressedTensors,
                                         CheckpointFormat::kFp8};

ModelConfig config_without_quantization(const fs::path& directory) {
  const fs::path path = directory / "config.json";
  Json json = read_json_file(path);
  require(json.is_object(), "{}: it is not an object", path.string());
  json.erase("quantization_config");
  json.erase("compression_config");
  return model_config_from_json(json, path.string());
}

class Loader {
 public:
  Loader(const fs::path& directory, const QuantizationConfig& config, StoredCodes codes)
      : config_(config),
        codes_(codes),
        parameters_(config_without_quantization(directory)),
        map_(parameters_),
        store_(directory) {}

  LoadedWeights run() {
    sort_tensors();
    for (const auto& [module, tensors] : quantised_) {
      load_quantised(module, tensors);
    }
    map_.require_complete();
    require_all_quantised();
    if (tied_head_) require_tied(*tied_head_, parameters_);
    LoadedWeights result{std::move(parameters_), nullptr};
    if (codes_ == StoredCodes::kKeep) {
      result.stored = std::make_shared<StoredWeights>(make_stored(result.parameters.layout()));
    }
    return result;
  }

 private:
  // Plain tensors are loaded at once, the others gathered by module.
  void sort_tensors() {
    const bool tied = parameters_.config().tie_word_embeddings;
    for (const TensorView& tensor : store_.tensors()) {
      const std::string module = module_of(tensor.name);
      if (QuantisedTensors taken; taken.take(tensor, config_.format)) {
        quantised_[module].take(tensor, config_.format);
      } else if (tied && tensor.name == "lm_head.weight") {
        tied_head_ = &tensor;
      } else if (!is_kv_cache_scale(tensor)) {
        require_unquantised(tensor);
        load_tensor(tensor, map_, parameters_);
      }
    }
  }

  bool is_kv_cache_scale(const TensorView& tensor) const {
    return config_.kv_cache_scales &&
           (tensor.name.ends_with(".k_scale") || tensor.name.ends_with(".v_scale"));
  }

  // Says more than that a name is unknown or a shape wrong.
  void require_unquantised(const TensorView& tensor) const {
    for (const CheckpointFormat other : kFormats) {
      const bool foreign = QuantisedTensors{}.take(tensor, other);
      require(!foreign, "tensor {} ({}) is of the format {}, but quantization_config says {}",
              tensor.name, describe(tensor), checkpoint_format_name(other),
              checkpoint_format_name(config_.format));
    }
    require(
        tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32,
        "tensor {} is {}; it is neither of the format {} nor BF16, F16 or F32", tensor.name,
        describe(tensor), checkpoint_format_name(config_.format));
  }

  void load_quantised(const std::string& module, const QuantisedTensors& tensors) {
    const std::string weight = module + ".weight";
    const TensorView& any =
        tensors.codes    ? *tensors.codes
        : tensors.scales ? *tensors.scales
                         : (tensors.global_scale ? *tensors.global_scale : *tensors.input_scale);
    const std::vector<int64_t>* shape = map_.shape(weight);
    require(shape != nullptr, "tensor {} is not part of this model", any.name);
    require(shape->size() == 2, "tensor {}: {} is no matrix that could be quantised", any.name,
            weight);
    require(config_.quantises(module),
            "tensor {} is of a quantised layer, but quantization_config leaves {} unquantised",
            any.name, module);
    const int64_t n = shape->at(0), k = shape->at(1);
    check_quantised(tensors, config_, module, n, k);
    const TensorPlace& place = map_.take(weight, *shape);
    require(place.pieces.size() == 1, "tensor {}: fused experts are not read quantised", any.name);
    dequantise(tensors, config_.format, n, k,
               parameters_.values() + map_.offset_of(place.pieces[0]));
  }

  void require_all_quantised() const {
    const ParameterLayout& layout = parameters_.layout();
    for (const QuantisableLinear& linear : quantisable_linears(parameters_.config(), layout)) {
      for (const ParameterPart& part : layout.at(linear.parameter).parts) {
        const std::string module = module_of(part.name);
        require(quantised_.contains(module) || !config_.quantises(module),
                "tensor {} is not quantised, but quantization_config says {} for it", part.name,
                checkpoint_format_name(config_.format));
      }
    }
  }

  StoredWeights make_stored(const ParameterLayout& layout) const {
    require(config_.format != CheckpointFormat::kFp8,
            "an FP8 checkpoint has no NVFP4 weights to be used as stored");
    StoredWeights result;
    for (int64_t i = 0; i < std::ssize(layout.parameters); ++i) {
      const Parameter& parameter = layout.at(i);
      StoredMatrix matrix;
      const std::string* first = nullptr;
      for (const ParameterPart& part : parameter.parts) {
        const std::string module = module_of(part.name);
        const auto found = quantised_.find(module);
        require((found != quantised_.end()) == (first != nullptr) || &part == &parameter.parts[0],
                "{} is stored as NVFP4 in part only: {} differs from the rest", parameter.name,
                module);
        if (found == quantised_.end()) continue;
        const float multiplier = global_multiplier(found->second, config_.format);
        require(first == nullptr || multiplier == matrix.global_scale,
                "{} has the global scale {:.9g} and {} {:.9g}; they share a matrix product, so "
                "that their codes cannot be used as stored",
                first ? *first : "", matrix.global_scale, module, multiplier);
        matrix.global_scale = multiplier;
        append_stored(found->second, &matrix);
        first = &found->first;
      }
      if (first) result.emplace(i, std::move(matrix));
    }
    return result;
  }

  const QuantizationConfig& config_;
  StoredCodes codes_;
  Parameters parameters_;
  TensorMap map_;
  TensorStore store_;
  std::map<std::string, QuantisedTensors> quantised_;  // by module
  const TensorView* tied_head_ = nullptr;
};

void require_no_quantised_tensors(const fs::path& directory) {
  const TensorStore store(directory);
  for (const TensorView& tensor : store.tensors()) {
    for (const CheckpointFormat format : kFormats) {
      require(!QuantisedTensors{}.take(tensor, format),
              "{}: tensor {} ({}) is of the format {}, but there is no quantization_config",
              directory.string(), tensor.name, describe(tensor), checkpoint_format_name(format));
    }
  }
}

}  // namespace

LoadedWeights load_weights(const fs::path& directory, StoredCodes codes) {
  const std::optional<QuantizationConfig> config = read_quantization_config(directory);
  if (!config) {
    require(codes == StoredCodes::kDrop,
            "{}: the checkpoint is not quantised; there are no weights to be used as stored",
            directory.string());
    try {
      return {load_parameters(directory), nullptr};
    } catch (const Error&) {
      require_no_quantised_tensors(directory);  // says more than that a name is unknown
      throw;
    }
  }
  try {
    return Loader(directory, *config, codes).run();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.starts_with(directory.string())) throw;
    fail("{}: {}", directory.string(), message);
  }
}

}  // namespace quads
