#include "checkpoints/quantization_config.h"

#include "base/error.h"

namespace quads {
namespace {

namespace fs = std::filesystem;

constexpr CheckpointFormat kFormats[] = {CheckpointFormat::kNvfp4ModelOpt,
                                         CheckpointFormat::kNvfp4CompressedTensors,
                                         CheckpointFormat::kFp8};
constexpr const char* kPackedFormat = "nvfp4-pack-quantized";
constexpr const char* kNvfp4 = "NVFP4";
constexpr const char* kNvfp4WeightsOnly = "W4A16_NVFP4";

using Strings = std::vector<std::string>;

bool is_empty(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() || (it->is_structured() && it->empty());
}

// object[key], where present, must be `expected`.
void require_value(const Json& object, const char* key, const Json& expected,
                   const std::string& where) {
  const auto it = object.find(key);
  if (it != object.end() && !it->is_null() && *it != expected) {
    fail("{}: '{}' is {}; only {} is supported", where, key, json_excerpt(*it),
         json_excerpt(expected));
  }
}

// The arguments of weights or activations: E2M1 in blocks of 16.
void require_nvfp4(const Json& arguments, const std::string& where) {
  require(get<int64_t>(arguments, "num_bits", where) == 4 &&
              get<std::string>(arguments, "type", where) == "float" &&
              get<int64_t>(arguments, "group_size", where) == 16,
          "{}: {} is not NVFP4 (num_bits 4, type float, group_size 16)", where,
          json_excerpt(arguments));
  require_value(arguments, "strategy", "tensor_group", where);
  require_value(arguments, "symmetric", true, where);
}

struct Groups {
  Strings targets;
  bool weights_only = false;
};

Groups read_groups(const Json& config, const std::string& where) {
  const Json groups = get<Json>(config, "config_groups", where);
  require(groups.is_object() && !groups.empty(), "{}: 'config_groups' is {}, not an object of some",
          where, json_excerpt(groups));
  Groups result;
  bool first = true;
  for (const auto& [name, group] : groups.items()) {
    const std::string at = fmt::format("{}: config_groups: {}", where, name);
    require_nvfp4(get<Json>(group, "weights", at), at + ": weights");
    const auto inputs = find_key<Json>(group, "input_activations", at);
    if (inputs) require_nvfp4(*inputs, at + ": input_activations");
    require_value(group, "output_activations", nullptr, at);
    require_value(group, "format", kPackedFormat, at);
    require(first || result.weights_only == !inputs,
            "{}: some groups quantise activations and some do not", where);
    result.weights_only = !inputs;
    first = false;
    for (std::string& target : get_or<Strings>(group, "targets", {"Linear"}, at)) {
      result.targets.push_back(std::move(target));
    }
  }
  return result;
}

// ModelOpt's algorithm, as either file names it.
bool read_weights_only(const std::string& algorithm, const std::string& where) {
  require(algorithm == kNvfp4 || algorithm == kNvfp4WeightsOnly,
          "{}: quant_algo '{}' is not supported; {} and {} are", where, algorithm, kNvfp4,
          kNvfp4WeightsOnly);
  return algorithm == kNvfp4WeightsOnly;
}

QuantizationConfig read_modelopt(const Json& config, const std::string& where) {
  QuantizationConfig result{
      .format = CheckpointFormat::kNvfp4ModelOpt,
      .weights_only = read_weights_only(get<std::string>(config, "quant_algo", where), where),
      .kv_cache_scales = !is_empty(config, "kv_cache_scheme"),
      .ignore = {get_or<Strings>(config, "ignore", {}, where), where + ": ignore"},
      .targets = {{"Linear"}, where}};
  if (!is_empty(config, "config_groups")) {
    Groups groups = read_groups(config, where);
    require(groups.weights_only == result.weights_only,
            "{}: quant_algo '{}' and config_groups' input_activations contradict each other", where,
            get<std::string>(config, "quant_algo", where));
    result.targets = {std::move(groups.targets), where + ": targets"};
  }
  return result;
}

QuantizationConfig read_hf_quant_config(const Json& json, const std::string& where) {
  const Json config = get<Json>(json, "quantization", where);
  require_value(config, "group_size", 16, where);
  return {.format = CheckpointFormat::kNvfp4ModelOpt,
          .weights_only = read_weights_only(get<std::string>(config, "quant_algo", where), where),
          .kv_cache_scales = !is_empty(config, "kv_cache_quant_algo"),
          .ignore = {get_or<Strings>(config, "exclude_modules", {}, where),
                     where + ": exclude_modules"},
          .targets = {{"Linear"}, where}};
}

QuantizationConfig read_compressed_tensors(const Json& config, const std::string& where) {
  require(get<std::string>(config, "format", where) == kPackedFormat,
          "{}: format '{}' is not supported; {} is", where,
          get<std::string>(config, "format", where), kPackedFormat);
  for (const char* key : {"transform_config", "sparsity_config"}) {
    require(is_empty(config, key), "{}: '{}' is {}; weights that it changes cannot be read", where,
            key, json_excerpt(config.value(key, Json())));
  }
  Groups groups = read_groups(config, where);
  return {.format = CheckpointFormat::kNvfp4CompressedTensors,
          .weights_only = groups.weights_only,
          .kv_cache_scales = !is_empty(config, "kv_cache_scheme"),
          .ignore = {get_or<Strings>(config, "ignore", {}, where), where + ": ignore"},
          .targets = {std::move(groups.targets), where + ": targets"}};
}

QuantizationConfig read_fp8(const Json& config, const std::string& where) {
  const auto block = find_key<Json>(config, "weight_block_size", where);
  require(block && *block == Json({128, 128}),
          "{}: 'weight_block_size' is {}; only [128, 128] is supported", where,
          block ? to_string(json_excerpt(*block)) : "missing");
  require_value(config, "activation_scheme", "dynamic", where);
  require_value(config, "fmt", "e4m3", where);
  Strings ignore = get_or<Strings>(config, "modules_to_not_convert", {}, where);
  for (std::string& module : get_or<Strings>(config, "ignored_layers", {}, where)) {
    ignore.push_back(std::move(module));
  }
  return {.format = CheckpointFormat::kFp8,
          .ignore = {std::move(ignore), where + ": modules_to_not_convert"},
          .targets = {{"Linear"}, where}};
}

QuantizationConfig read_config(const Json& config, const std::string& where) {
  const auto method = get<std::string>(config, "quant_method", where);
  if (method == "modelopt" || method == "modelopt_fp4") return read_modelopt(config, where);
  if (method == "compressed-tensors") return read_compressed_tensors(config, where);
  if (method == "fp8") return read_fp8(config, where);
  fail("{}: quant_method '{}' is not supported; modelopt, compressed-tensors and fp8 are", where,
       method);
}

// The name by which engines know the format.
Json producer() { return {{"name", "modelopt"}, {"version", "quads 0.1"}}; }

Json nvfp4_arguments(const Json& dynamic, bool compressed_tensors) {
  Json arguments = {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}, {"dynamic", dynamic}};
  if (compressed_tensors) {
    arguments["strategy"] = "tensor_group";
    arguments["symmetric"] = true;
  }
  return arguments;
}

}  // namespace

CheckpointFormat parse_checkpoint_format(std::string_view name) {
  for (const CheckpointFormat format : kFormats) {
    if (name == checkpoint_format_name(format)) return format;
  }
  fail("unknown format '{}': use nvfp4-modelopt, nvfp4-compressed-tensors or fp8", name);
}

std::string_view checkpoint_format_name(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::kNvfp4ModelOpt:
      return "nvfp4-modelopt";
    case CheckpointFormat::kNvfp4CompressedTensors:
      return "nvfp4-compressed-tensors";
    case CheckpointFormat::kFp8:
      break;
  }
  return "fp8";
}

bool QuantizationConfig::quantises(const std::string& module) const {
  return !ignore.match(module) && (targets.match("Linear") || targets.match(module));
}

std::optional<QuantizationConfig> read_quantization_config(const fs::path& directory) {
  const fs::path config_path = directory / "config.json";
  const fs::path extra_path = directory / "hf_quant_config.json";
  const Json config = read_json_file(config_path);
  std::optional<QuantizationConfig> result, extra;
  const std::string where = config_path.string() + ": quantization_config";
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto json = find_key<Json>(config, key, config_path.string());
    if (json && !result) result = read_config(*json, where);
  }
  if (fs::exists(extra_path)) {
    extra = read_hf_quant_config(read_json_file(extra_path), extra_path.string());
  }
  if (!result || !extra) return result ? result : extra;
  require(result->format == extra->format && result->weights_only == extra->weights_only,
          "{}: {} and {} contradict each other", directory.string(),
          config_path.filename().string(), extra_path.filename().string());
  return result;
}

Json quantization_config_json(CheckpointFormat format, bool weights_only,
                              const std::vector<std::string>& ignore) {
  if (format == CheckpointFormat::kFp8) {
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", ignore}};
  }
  const bool compressed_tensors = format == CheckpointFormat::kNvfp4CompressedTensors;
  Json group = {{"targets", {"Linear"}}, {"weights", nvfp4_arguments(false, compressed_tensors)}};
  if (!weights_only) {
    // compressed-tensors' "local": block scales as activations come, under the static global one.
    group["input_activations"] =
        nvfp4_arguments(compressed_tensors ? Json("local") : Json(false), compressed_tensors);
  }
  Json config = {{"config_groups", {{"group_0", std::move(group)}}}, {"ignore", ignore}};
  if (compressed_tensors) {
    config["quant_method"] = "compressed-tensors";
    config["format"] = kPackedFormat;
    config["quantization_status"] = "compressed";
  } else {
    config["quant_method"] = "modelopt";
    config["quant_algo"] = weights_only ? kNvfp4WeightsOnly : kNvfp4;
    config["producer"] = producer();
  }
  return config;
}

Json hf_quant_config_json(bool weights_only, const std::vector<std::string>& ignore) {
  return {{"producer", producer()},
          {"quantization",
           {{"quant_algo", weights_only ? kNvfp4WeightsOnly : kNvfp4},
            {"kv_cache_quant_algo", nullptr},
            {"group_size", 16},
            {"exclude_modules", ignore}}}};
}

}  // namespace quads
