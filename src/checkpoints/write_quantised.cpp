#include "checkpoints/write_quantised.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <span>

#include "base/error.h"
#include "checkpoints/quantisable.h"
#include "checkpoints/quantised_tensors.h"
#include "io/safetensors_writer.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"

namespace quads {
namespace {

namespace fs = std::filesystem;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TensorView view_of(std::string name, DType dtype, std::vector<int64_t> shape,
                   std::span<const std::byte> bytes) {
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = std::move(shape),
          .data = bytes.data(),
          .nbytes = bytes.size()};
}

// One module's tensors in memory.
struct QuantisedModule {
  std::string name;
  int64_t n = 0, k = 0;
  std::vector<uint8_t> codes, block_scales;
  std::vector<float> fp8_scales, global_scale, input_scale;

  void add_views(CheckpointFormat format, std::vector<TensorView>& views) const {
    const QuantisedNames& names = quantised_names(format);
    const auto at = [&](const char* suffix) { return fmt::format("{}.{}", name, suffix); };
    if (format == CheckpointFormat::kFp8) {
      views.push_back(view_of(at(names.codes), DType::kF8E4M3, {n, k}, bytes_of(codes)));
      views.push_back(view_of(at(names.scales), DType::kF32,
                              {(n + kFp8Block - 1) / kFp8Block, (k + kFp8Block - 1) / kFp8Block},
                              bytes_of(fp8_scales)));
      return;
    }
    // compressed-tensors has lists of one where ModelOpt has scalars.
    const std::vector<int64_t> scalar = format == CheckpointFormat::kNvfp4CompressedTensors
                                            ? std::vector<int64_t>{1}
                                            : std::vector<int64_t>{};
    views.push_back(view_of(at(names.codes), DType::kU8, {n, k / 2}, bytes_of(codes)));
    views.push_back(
        view_of(at(names.scales), DType::kF8E4M3, {n, k / kNvfp4Block}, bytes_of(block_scales)));
    views.push_back(view_of(at(names.global_scale), DType::kF32, scalar, bytes_of(global_scale)));
    if (!input_scale.empty()) {
      views.push_back(view_of(at(names.input_scale), DType::kF32, scalar, bytes_of(input_scale)));
    }
  }
};

std::vector<float> to_floats(const Bf16* values, int64_t count) {
  std::vector<float> result(static_cast<size_t>(count));
  std::transform(values, values + count, result.begin(), [](Bf16 x) { return to_float(x); });
  return result;
}

std::string source_name(const fs::path& source, const std::string& tensor) {
  return fmt::format("{}: tensor {}", source.string(), tensor);
}

// What is quantised, decided before anything is computed.
class Selection {
 public:
  Selection(const Parameters& parameters, const WriteQuantisedOptions& options)
      : layout_(parameters.layout()), exclude_(options.exclude, "--exclude") {
    const ModelConfig& config = parameters.config();
    std::map<int64_t, bool> experts;  // by layer: whether they are quantised
    for (const QuantisableLinear& linear : quantisable_linears(config, layout_)) {
      const bool covered = options.scope.covers(linear.layer, config.num_hidden_layers,
                                                config.is_sparse(linear.layer), linear.site);
      const bool taken = covered && !excluded(linear.parameter);
      if (linear.routed_expert && covered) {
        const bool before = experts.emplace(linear.layer, taken).first->second;
        require(before == taken,
                "--exclude leaves out some experts' matrices of layer {}, such as {}; engines "
                "load a layer's experts quantised all or none",
                linear.layer, layout_.at(linear.parameter).name);
      }
      if (taken) linears_.push_back(linear);
      is_quantised_[linear.parameter] = taken;
    }
    for (const std::string& entry : options.exclude) {
      const ModulePatterns pattern({entry}, "--exclude");
      bool used = false;
      for_modules([&](int64_t, const std::string& module) { used |= pattern.match(module); });
      require(used, "--exclude {}: the model has no such module", entry);
    }
    require(!linears_.empty(), "nothing is left to quantise");
  }

  const std::vector<QuantisableLinear>& linears() const { return linears_; }

  // The linear layers that stay as they are, by name: routers and the head among them.
  std::vector<std::string> ignored() const {
    std::vector<std::string> modules;
    for_modules([&](int64_t parameter, const std::string& module) {
      const auto found = is_quantised_.find(parameter);
      if (found == is_quantised_.end() || !found->second) modules.push_back(module);
    });
    if (layout_.head == layout_.embedding) modules.push_back("lm_head");
    return modules;
  }

 private:
  template <class Body>
  void for_modules(Body body) const {
    for (int64_t i = 0; i < std::ssize(layout_.parameters); ++i) {
      if (layout_.at(i).vector || i == layout_.embedding) continue;
      for (const ParameterPart& part : layout_.at(i).parts) body(i, module_of(part.name));
    }
  }

  bool excluded(int64_t parameter) const {
    const std::vector<ParameterPart>& parts = layout_.at(parameter).parts;
    const bool first = exclude_.match(module_of(parts[0].name));
    for (const ParameterPart& part : parts) {
      require(exclude_.match(module_of(part.name)) == first,
              "--exclude parts {} from {}; engines multiply with both at once",
              module_of(part.name), module_of(parts[0].name));
    }
    return first;
  }

  const ParameterLayout& layout_;
  ModulePatterns exclude_;
  std::vector<QuantisableLinear> linears_;
  std::map<int64_t, bool> is_quantised_;  // by parameter
};

// The modules of one parameter.
std::vector<QuantisedModule> quantise(const Parameters& parameters, const QuantisableLinear& linear,
                                      const fs::path& source,
                                      const WriteQuantisedOptions& options) {
  const Parameter& parameter = parameters.layout().at(linear.parameter);
  const Bf16* values = parameters.of(linear.parameter);
  const bool divides = options.format == CheckpointFormat::kNvfp4CompressedTensors;
  float stored = 1.0F, multiplier = 1.0F;  // the global scale in the file, and what it does
  if (options.format != CheckpointFormat::kFp8) {
    const std::vector<float> all = to_floats(values, parameter.size());
    const float amax = checked_amax(all, parameter.rows, parameter.cols, parameter.name);
    multiplier = options.global_scale == GlobalScale::kPowerOfTwo ? global_scale_pow2(amax)
                                                                  : global_scale_arbitrary(amax);
    stored = divides ? 1.0F / multiplier : multiplier;
    if (divides) multiplier = 1.0F / stored;
  }
  std::vector<QuantisedModule> modules;
  for (const ParameterPart& part : parameter.parts) {
    QuantisedModule& module = modules.emplace_back();
    module.name = module_of(part.name);
    module.n = part.rows;
    module.k = parameter.cols;
    const std::string where = source_name(source, part.name);
    const std::vector<float> x =
        to_floats(values + part.row_begin * parameter.cols, part.rows * parameter.cols);
    if (options.format == CheckpointFormat::kFp8) {
      Fp8Matrix q = quantise_fp8(x, module.n, module.k, kFp8Block, where);
      module.codes = std::move(q.codes);
      module.fp8_scales = std::move(q.scales);
      continue;
    }
    Nvfp4Matrix q = quantise_nvfp4(x, module.n, module.k, multiplier, where);
    module.codes = std::move(q.packed);
    module.block_scales = std::move(q.block_scales);
    module.global_scale = {stored};
    if (options.input_amax) {
      const float scale =
          global_scale_arbitrary(options.input_amax->at(linear.layer, linear.input));
      module.input_scale = {divides ? 1.0F / scale : scale};
    }
  }
  return modules;
}

void copy_companions(const fs::path& source, const fs::path& out) {
  constexpr const char* kNames[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "tokenizer.model",
                                    "chat_template.jinja",
                                    "chat_template.json",
                                    "generation_config.json"};
  for (const char* name : kNames) {
    if (!fs::exists(source / name)) continue;
    std::error_code error;
    fs::copy_file(source / name, out / name, error);
    require(!error, "{}: cannot be copied to {}: {}", (source / name).string(), out.string(),
            error.message());
  }
}

}  // namespace

GlobalScale parse_global_scale(std::string_view name) {
  if (name == "pow2") return GlobalScale::kPowerOfTwo;
  if (name == "amax") return GlobalScale::kAmax;
  fail("unknown global scale '{}': use pow2 or amax", name);
}

void write_quantised(const kernels::CpuContext& context, const Parameters& parameters,
                     const fs::path& source, const fs::path& out,
                     const WriteQuantisedOptions& options) {
  const ParameterLayout& layout = parameters.layout();
  const Selection selection(parameters, options);
  const std::vector<QuantisableLinear>& linears = selection.linears();

  std::vector<std::vector<QuantisedModule>> quantised(layout.parameters.size());
  std::mutex mutex;
  int64_t done = 0;
  if (options.on_progress) options.on_progress(0, std::ssize(linears));
  context.parallel_for(std::ssize(linears), [&](int64_t i, int) {
    const QuantisableLinear& linear = linears[static_cast<size_t>(i)];
    quantised[static_cast<size_t>(linear.parameter)] =
        quantise(parameters, linear, source, options);
    const std::scoped_lock lock(mutex);
    ++done;
    if (options.on_progress) options.on_progress(done, std::ssize(linears));
  });

  std::vector<TensorView> views;
  for (size_t p = 0; p < layout.parameters.size(); ++p) {
    if (quantised[p].empty()) {
      parameters.add_views(static_cast<int64_t>(p), views);
    } else {
      for (const QuantisedModule& module : quantised[p]) module.add_views(options.format, views);
    }
  }
  write_model_tensors(out, views);

  const std::vector<std::string> ignored = selection.ignored();
  const bool weights_only = options.input_amax == nullptr;
  Json config = read_json_file(source / "config.json");
  config.erase("compression_config");
  config["quantization_config"] = quantization_config_json(options.format, weights_only, ignored);
  write_json_file(out / "config.json", config);
  if (options.format == CheckpointFormat::kNvfp4ModelOpt) {
    write_json_file(out / "hf_quant_config.json", hf_quant_config_json(weights_only, ignored));
  }
  copy_companions(source, out);
}

}  // namespace quads
