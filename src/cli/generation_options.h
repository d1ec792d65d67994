// Options of the commands that sample from a model: which precisions, and how to draw.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "eval/device.h"

namespace quads::cli {

/// A precision as it is named on the command line; fp32 (the reference path) has none.
struct NamedPrecision {
  std::string name;  // "nvfp4-rac50"
  std::optional<Precision> precision;
};

/// --precision (repeatable), --rac-*, --quantize and --high-precision-*.
struct PrecisionOptions {
  std::vector<std::string> names;
  RacOptions rac;
  ScopeOptions scope;

  /// `reference`: whether fp32 is one.
  void add(CLI::App* command, const std::vector<std::string>& defaults, bool reference);
  /// Error for what does not go together.
  std::vector<NamedPrecision> make() const;
  /// The scope for `precision`: everything where nothing is quantised.
  QuantizeScope scope_of(const Precision& precision, const ModelConfig& model) const;
};

/// --temperature, --top-p, --top-k, --max-response-len, --seed, --max-running, --kv-memory;
/// --device and --weights-as-stored.
struct GenerationOptions {
  std::string device = "cpu";
  float temperature = 1.0F;
  float top_p = 1.0F;
  int32_t top_k = 0;
  int64_t max_response_len = 64;
  uint64_t seed = 1;
  int64_t max_running = 512;
  int64_t kv_memory = 0;  // bytes
  const CLI::Option* kv_memory_option = nullptr;
  bool weights_as_stored = false;

  void add(CLI::App* command);
  void add_device_and_stored(CLI::App* command);
  GenerateOptions make(std::vector<int32_t> stop_tokens) const;
  /// Otherwise a GPU's pages take what memory the weights leave.
  bool kv_memory_given() const { return kv_memory_option->count() > 0; }
  /// For load_model: the host's memory takes the weights where the host computes with them. Error
  /// for a precision that the device does not have.
  LoadOptions load_options(std::span<const NamedPrecision> precisions) const;
};

/// The generator for a precision, with the checkpoint's own codes where the model has kept them;
/// where it compensates, its masks are made by sampling the first prompts of `requests` once each,
/// as `options` says, or those of a checkpoint that fit. No sequence is longer than `max_context`.
std::unique_ptr<Generator> make_generator(kernels::CpuRuntime& runtime, const LoadedModel& model,
                                          const NamedPrecision& precision,
                                          const PrecisionOptions& precisions,
                                          const GenerationOptions& generation,
                                          std::span<const Request> requests, int64_t max_context,
                                          const GenerateOptions& options,
                                          const std::optional<RacMasks>& checkpoint_masks);

/// The masks that quads train left in the checkpoint `model`, if it is one and has some.
std::optional<RacMasks> checkpoint_masks(const std::filesystem::path& model,
                                         const ModelConfig& config);

/// --json [FILE]: where to write JSON; without FILE it takes the place of the table.
struct JsonOption {
  std::string path;
  const CLI::Option* option = nullptr;
  void add(CLI::App* command);
  /// Error if it names the file that `option` names too; an empty one is none.
  void require_other(const char* option, const std::string& file) const;
  /// Error unless `write` can write, before anything is computed for it.
  void require_writable() const;
  /// Prints `table`, and writes `json` where it was asked for. To be called before other files are
  /// written: what was computed is shown even if they cannot be.
  void write(const std::string& table, const std::string& json) const;
};

}  // namespace quads::cli
