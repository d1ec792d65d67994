#include "cli/generation_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "io/atomic_file.h"
#include "trainer/masks_file.h"

namespace quads::cli {
namespace {

constexpr std::string_view kRac = "nvfp4-rac";

NamedPrecision parse_named(const std::string& text, const RacOptions& rac) {
  if (text == "fp32") return {text, std::nullopt};
  if (!text.starts_with(kRac)) return {text, parse_precision(text, {})};
  RacOptions options = rac;
  if (text.size() > kRac.size()) options.ratio = text.substr(kRac.size()) + "%";
  const Precision precision = parse_precision(kRac, options.make(.5));
  return {precision_name(precision), precision};
}

// Of --temperature: greedy, or one that logits can be divided by.
std::string check_temperature(const std::string& text) {
  double value = 0;
  const bool fits = CLI::detail::lexical_cast(text, value) && std::isfinite(value) &&
                    (value == 0 || value >= kLeastTemperature);
  return fits ? std::string()
              : fmt::format("{} is neither 0 nor a number of at least {}", text, kLeastTemperature);
}

}  // namespace

void PrecisionOptions::add(CLI::App* command, const std::vector<std::string>& defaults,
                           bool reference) {
  names = defaults;
  std::vector<std::string> known = precision_names();
  if (reference) known.emplace_back("fp32");
  std::string help = "nvfp4-rac25 says the ratio in per cent; ";
  if (reference) help += "fp32: the slow, unrounded reference; ";
  const auto check = [known](const std::string& text) {
    const bool with_ratio = text.starts_with(kRac) && parse_share(text.substr(kRac.size()) + "%");
    return with_ratio || std::ranges::find(known, text) != known.end()
               ? std::string()
               : fmt::format(
                     "unknown precision '{}': use one of {}, with the ratio in per cent "
                     "nvfp4-rac25",
                     text, fmt::join(known, ", "));
  };
  command->add_option("--precision", names, help + "repeatable")
      ->capture_default_str()
      ->delimiter(',')
      ->check(CLI::Validator(check, fmt::format("{{{}}}", fmt::join(known, ","))));
  rac.add(command);
  scope.add(command);
}

std::vector<NamedPrecision> PrecisionOptions::make() const {
  std::vector<NamedPrecision> result;
  bool takes_ratio = rac.ratio.empty();
  for (const std::string& name : names) {
    takes_ratio |= name == kRac;
    result.push_back(parse_named(name, rac));
  }
  if (!takes_ratio) {
    throw CLI::ValidationError(
        "--rac-ratio", fmt::format("{} is for --precision nvfp4-rac; {} has no ratio to be set",
                                   rac.ratio, fmt::join(names, ", ")));
  }
  return result;
}

QuantizeScope PrecisionOptions::scope_of(const Precision& precision,
                                         const ModelConfig& model) const {
  return precision == Precision{} ? QuantizeScope{} : scope.make(model);
}

void GenerationOptions::add_device_and_stored(CLI::App* command) {
  add_device(command, device);
  command->add_flag("--weights-as-stored", weights_as_stored,
                    "NVFP4 checkpoints: multiply with the file's own codes and scales instead of "
                    "quantising its dequantised weights again");
}

void GenerationOptions::add(CLI::App* command) {
  command->add_option("--temperature", temperature, "sampling temperature; 0 is greedy")
      ->capture_default_str()
      ->check(CLI::Validator(check_temperature, "TEMPERATURE"));
  command->add_option("--top-p", top_p, "nucleus sampling; 1 is off")
      ->capture_default_str()
      ->check(share());
  command->add_option("--top-k", top_k, "top-k sampling; 0 is off")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--max-response-len", max_response_len, "longest response, tokens")
      ->capture_default_str()
      ->check(positive());
  command->add_option("--seed", seed, "of the sampling")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--max-running", max_running, "sequences decoded at once")
      ->capture_default_str()
      ->check(positive());
  kv_memory_option = add_kv_memory(command, kv_memory);
}

LoadOptions GenerationOptions::load_options(std::span<const NamedPrecision> precisions) const {
  const bool has_reference =
      std::ranges::any_of(precisions, [](const NamedPrecision& named) { return !named.precision; });
  const bool on_cpu = parse_device(device) == Device::kCpu;
  require(on_cpu || !has_reference,
          "--precision fp32 is the CPU's reference: evaluate it without --device {}", device);
  return {.codes = weights_as_stored ? StoredCodes::kKeep : StoredCodes::kDrop,
          .into_memory = on_cpu};
}

GenerateOptions GenerationOptions::make(std::vector<int32_t> stop_tokens) const {
  GenerateOptions options;
  options.sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p};
  options.seed = seed;
  options.max_new_tokens = max_response_len;
  options.stop_tokens = std::move(stop_tokens);
  options.cancel = &stop_requested();
  return options;
}

std::unique_ptr<Generator> make_generator(kernels::CpuRuntime& runtime, const LoadedModel& model,
                                          const NamedPrecision& precision,
                                          const PrecisionOptions& precisions,
                                          const GenerationOptions& generation,
                                          std::span<const Request> requests, int64_t max_context,
                                          const GenerateOptions& options,
                                          const std::optional<RacMasks>& checkpoint_masks) {
  if (!precision.precision) {
    require(!model.stored, "--weights-as-stored: precision {} multiplies with no NVFP4 weights",
            precision.name);
    return std::make_unique<ReferenceGenerator>(runtime, *model.parameters, max_context);
  }
  GeneratorOptions engine{.precision = *precision.precision,
                          .scope = precisions.scope_of(*precision.precision, model.config()),
                          .max_running = generation.max_running,
                          .max_context = max_context,
                          .kv_memory_bytes = generation.kv_memory,
                          .stored = model.stored.get()};
  const bool samples_masks = engine.precision.rac.ratio > 0 && engine.precision.rac.ratio < 1;
  if (samples_masks) engine.masks = checkpoint_masks;
  constexpr size_t kCalibrationPrompts = 64;
  std::vector<Request> calibration;
  for (const Request& request : requests.first(std::min(requests.size(), kCalibrationPrompts))) {
    calibration.push_back({.prompt_index = std::ssize(calibration), .prompt = request.prompt});
  }
  std::unique_ptr<EngineGenerator> generator;
  if (parse_device(generation.device) == Device::kCuda) {
    engine.prefill_chunk = kDevicePrefillChunk;
    if (!generation.kv_memory_given()) engine.kv_memory_bytes = 0;
    generator = make_cuda_generator(*model.files, engine, calibration, options);
  } else {
    generator =
        std::make_unique<CpuGenerator>(runtime, *model.parameters, engine, calibration, options);
  }
  if (engine.masks) {
    std::fprintf(
        stderr,
        generator->has_given_masks()
            ? "%s: under the checkpoint's compensation masks\n"
            : "%s: the checkpoint's compensation masks are for another share or scope; new "
              "ones are made by sampling\n",
        precision.name.c_str());
  }
  return generator;
}

std::optional<RacMasks> checkpoint_masks(const std::filesystem::path& model,
                                         const ModelConfig& config) {
  const std::filesystem::path file = masks_file(model);
  if (!std::filesystem::exists(file)) return std::nullopt;
  RacMasks masks = load_masks(file, config.num_hidden_layers);
  if (masks.masks.empty()) return std::nullopt;
  return masks;
}

void JsonOption::add(CLI::App* command) {
  option =
      command
          ->add_option("--json", path,
                       "write JSON to this file; without a file, print it instead of the table")
          ->expected(0, 1)
          ->type_name("[FILE]");
}

void JsonOption::require_other(const char* option, const std::string& file) const {
  if (path.empty() || file.empty()) return;
  const auto place = [](const std::string& name) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(name);
    std::filesystem::path found = std::filesystem::weakly_canonical(absolute, error);
    return error ? absolute : found;  // as it is written, where it cannot be looked for
  };
  require(place(path) != place(file),
          "{} {} and --json {}: one file for both: choose another for one of them", option, file,
          path);
}

void JsonOption::require_writable() const {
  if (!path.empty()) require_writable_target(path);
}

void JsonOption::write(const std::string& table, const std::string& json) const {
  const bool instead = option->count() > 0 && path.empty();
  std::fputs((instead ? json : table).c_str(), stdout);
  if (!path.empty()) write_file_atomically(path, json);
}

}  // namespace quads::cli
