#include "checkpoints/load_weights.h"

#include <cmath>
#include <cstring>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "checkpoints/quantisable.h"
#include "checkpoints/quantised_tensors.h"
#include "io/tensor_store.h"

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

/// Finds a quantised checkpoint's tensors, and checks them.
class Opener {
 public:
  Opener(const fs::path& directory, const QuantizationConfig& config)
      : config_(config),
        files_(
            std::make_unique<ParameterFiles>(config_without_quantization(directory), directory)) {}

  OpenedWeights run(StoredCodes codes) {
    std::shared_ptr<StoredWeights> stored;
    files_->naming_directory([&] {
      sort_tensors();
      for (const auto& [module, tensors] : quantised_) {
        add_quantised(module, tensors);
      }
      files_->finish();
      require_all_quantised();
      if (codes == StoredCodes::kKeep) stored = std::make_shared<StoredWeights>(make_stored());
    });
    return {std::move(files_), std::move(stored)};
  }

 private:
  // Plain tensors are added at once, the others gathered by module.
  void sort_tensors() {
    for (const TensorView& tensor : files_->store().tensors()) {
      const std::string module = module_of(tensor.name);
      if (QuantisedTensors taken; taken.take(tensor, config_.format)) {
        quantised_[module].take(tensor, config_.format);
      } else if (!is_kv_cache_scale(tensor)) {
        require_unquantised(tensor);
        files_->add(tensor);
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

  void add_quantised(const std::string& module, const QuantisedTensors& tensors) {
    const std::string weight = module + ".weight";
    const TensorView& any =
        tensors.codes    ? *tensors.codes
        : tensors.scales ? *tensors.scales
                         : (tensors.global_scale ? *tensors.global_scale : *tensors.input_scale);
    const std::vector<int64_t>* shape = files_->shape(weight);
    require(shape != nullptr, "tensor {} is not part of this model", any.name);
    require(shape->size() == 2, "tensor {}: {} is no matrix that could be quantised", any.name,
            weight);
    require(config_.quantises(module),
            "tensor {} is of a quantised layer, but quantization_config leaves {} unquantised",
            any.name, module);
    check_quantised(tensors, config_, module, shape->at(0), shape->at(1));
    const TensorStore& store = files_->store();
    release(store, tensors);
    files_->add(weight, *shape,
                [&store, tensors, format = config_.format, k = shape->at(1)](
                    int64_t begin, int64_t count, Bf16* out) {
                  dequantise(tensors, format, k, begin, count, out);
                  release(store, tensors);
                });
  }

  // One matrix, a few MiB: all that was touched of it.
  static void release(const TensorStore& store, const QuantisedTensors& tensors) {
    for (const auto* tensor : {&tensors.codes, &tensors.scales}) {
      store.release({(*tensor)->data, (*tensor)->nbytes});
    }
  }

  void require_all_quantised() const {
    const ParameterLayout& layout = files_->layout();
    for (const QuantisableLinear& linear : quantisable_linears(files_->config(), layout)) {
      for (const ParameterPart& part : layout.at(linear.parameter).parts) {
        const std::string module = module_of(part.name);
        require(quantised_.contains(module) || !config_.quantises(module),
                "tensor {} is not quantised, but quantization_config says {} for it", part.name,
                checkpoint_format_name(config_.format));
      }
    }
  }

  StoredWeights make_stored() const {
    const ParameterLayout& layout = files_->layout();
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
        release(files_->store(), found->second);
        first = &found->first;
      }
      if (first) result.emplace(i, std::move(matrix));
    }
    return result;
  }

  const QuantizationConfig& config_;
  std::unique_ptr<ParameterFiles> files_;
  std::map<std::string, QuantisedTensors> quantised_;  // by module
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

OpenedWeights open_weights(const fs::path& directory, StoredCodes codes) {
  const std::optional<QuantizationConfig> config = read_quantization_config(directory);
  if (config) return Opener(directory, *config).run(codes);
  require(codes == StoredCodes::kDrop,
          "{}: the checkpoint is not quantised; there are no weights to be used as stored",
          directory.string());
  try {
    return {open_parameters(directory), nullptr};
  } catch (const Error&) {
    require_no_quantised_tensors(directory);  // says more than that a name is unknown
    throw;
  }
}

LoadedWeights load_weights(const fs::path& directory, StoredCodes codes) {
  const OpenedWeights opened = open_weights(directory, codes);
  return {load_parameters(*opened.files), opened.stored};
}

}  // namespace quads
