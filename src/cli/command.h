// What the subcommands share: registration, the configuration file, runtime and signals.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoints/load_weights.h"
#include "eval/device.h"
#include "kernels/cpu/context.h"
#include "model/parameters.h"
#include "model/precision.h"
#include "rl/names.h"
#include "tokenizer/tokenizer.h"

namespace quads::cli {

/// One function a file: declares the subcommand's options on `app` and what it does.
void add_pretrain(CLI::App& app);
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_compare(CLI::App& app);
void add_rollout(CLI::App& app);
void add_diagnose(CLI::App& app);
void add_quantize(CLI::App& app);
void add_report(CLI::App& app);
void add_bench(CLI::App& app);
void add_info(CLI::App& app);

/// Wrong usage unless `quads train` takes these arguments, --resume not among them, as far as can
/// be told without a model.
void check_train(const std::vector<std::string>& arguments);

/// Adds --config F.toml to a subcommand: a TOML file whose keys are the long names of the options
/// without dashes; tables are allowed for order and joined with '-' ([rac] ratio = 0.5 is
/// --rac-ratio). An unknown key, a wrong type or a syntax error is a usage error that names file
/// and key. Flags on the command line win.
void add_config(CLI::App* command);
/// All options of a subcommand with their present values, as TOML that add_config reads. Options
/// named in `leave_out` are not written.
std::string resolved_config(const CLI::App& command, const std::vector<std::string>& leave_out);

/// `message`, and which of the options that it names a configuration file has set; `words` are the
/// command line.
std::string with_origin(const CLI::App& app, const std::vector<std::string>& words,
                        std::string message);
/// What `error` says of a command line that `app` has parsed, in one line.
std::string usage_error(const CLI::App& app, const CLI::Error& error);

/// What `make` returns. Its Error becomes wrong usage: for what is wrong with options whatever the
/// files hold, asked before any of them is read.
template <class Make>
auto from_options(const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw CLI::ValidationError(error.what());
  }
}

/// Has every option of `app` and its subcommands refuse an empty value, and those of a number
/// whatever is no finite one in decimal: CLI11 takes an empty text for 0, 010 for 8, 0x10 for 16,
/// and a whole number beyond 64 bits for the last that fits. Whole numbers end at 2^63 - 1, as in
/// TOML. Options with a type_name of their own see to their values themselves.
void add_value_checks(CLI::App& app);

/// Error that names --out if `out` cannot become a folder, as it or what it would lie in is a file.
void require_out_folder(const std::filesystem::path& out);
/// Makes that folder, unless it is there.
void make_out_folder(const std::filesystem::path& out);

/// Checks of an option's number: above 0; not below; above 0 and at most 1.
const CLI::Validator& positive();
const CLI::Validator& not_negative();
const CLI::Validator& share();
/// Check that a text is `form`, two texts with a '=' between them: "KEY=VALUE".
CLI::Validator pair_check(const std::string& form);

/// --threads, --isa.
struct RuntimeOptions {
  int threads = 0;  // 0: all cores of this process
  std::string isa = "auto";
  void add(CLI::App* command);
  std::unique_ptr<kernels::CpuRuntime> make() const;
};

/// Adds an option whose values are the names of `Enum` (rl/names.h).
template <class Enum>
CLI::Option* add_names(CLI::App* command, const std::string& name, std::string& value,
                       const std::string& help) {
  return command->add_option(name, value, help)
      ->capture_default_str()
      ->check(CLI::IsMember(names_of<Enum>()));
}

/// --kv-memory: bytes, or a size with a unit of 1024's powers (512MiB, 512M, 2GiB); "256MiB" if it
/// is not given.
CLI::Option* add_kv_memory(CLI::App* command, int64_t& bytes);

/// --device.
CLI::Option* add_device(CLI::App* command, std::string& device);

/// --max-tokens-per-batch.
struct MicroBatchOptions {
  std::optional<int64_t> rows;  // none: the device's default
  void add(CLI::App* command);
  int64_t make(Device device, const ModelConfig& model, bool checkpoint_activations) const;
};

/// --quantize, --high-precision-first-layers, --high-precision-last-layers.
struct ScopeOptions {
  std::string quantize = "experts";
  QuantizeScope scope;
  void add(CLI::App* command);
  /// Error if nothing of `model` would be quantised.
  QuantizeScope make(const ModelConfig& model) const;
};

/// A share in [0, 1], "0.5" or "50%"; nothing for any other text.
std::optional<double> parse_share(const std::string& text);

/// --rac-ratio, --rac-granularity, --rac-scale-floor.
struct RacOptions {
  std::string ratio;  // as parse_share takes it; empty: the recipe's or precision's own
  std::string granularity = "channel";
  bool scale_floor = false;
  void add(CLI::App* command);
  /// With `default_ratio` where none is given.
  Rac make(double default_ratio) const;
};

struct LoadOptions {
  bool require_tokenizer = true;
  StoredCodes codes = StoredCodes::kDrop;
  bool into_memory = true;  // otherwise the weights stay in their files
};

/// A model directory's weights, tokenizer and stop tokens.
struct LoadedModel {
  std::unique_ptr<const ParameterFiles> files;  // dequantised, where the checkpoint is quantised
  std::unique_ptr<Parameters> parameters;       // their values in memory; null: not loaded
  std::shared_ptr<const StoredWeights> stored;  // the checkpoint's codes, if they were asked for
  std::unique_ptr<Tokenizer> tokenizer;  // null if the directory has none and it is not required
  std::vector<int32_t> stop_tokens;      // from generation_config.json, else config.json
  const ModelConfig& config() const { return files->config(); }
};
LoadedModel load_model(const std::filesystem::path& directory, const LoadOptions& options = {});

/// For a terminal, which obeys control characters: those, and bytes that are no UTF-8, as "\x1b";
/// of more than some 2,000 bytes the middle is left out. Messages quote files.
std::string printable(std::string_view text);

/// Set by SIGINT and SIGTERM from the first call on; one more, a second or later, ends
/// the program at once.
const std::atomic<bool>& stop_requested();
/// Whether one of them has come: the error that a command then ends with is an interruption.
bool was_stopped();

}  // namespace quads::cli
