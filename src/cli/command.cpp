#include "cli/command.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <csignal>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "io/generation_config.h"
#include "tokenizer/utf8.h"
#include "trainer/checkpoint.h"
#include "trainer/micro_batch.h"

namespace quads::cli {
namespace {

// "quads bench gemm".
std::string words_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return (parent == nullptr ? "" : words_of(*parent) + " ") + command.get_name();
}

// A TOML value as the text that the option's own parser takes.
std::string scalar_text(const toml::node& node, const std::string& key) {
  if (const auto* s = node.as_string()) return s->get();
  if (const auto* b = node.as_boolean()) return b->get() ? "true" : "false";
  if (const auto* i = node.as_integer()) return fmt::format("{}", i->get());
  if (const auto* f = node.as_floating_point()) return fmt::format("{}", f->get());
  throw CLI::ConfigError(
      fmt::format("key '{}': a string, number, boolean or list of these is "
                  "expected",
                  key));
}

// An option's name and the values that a file gives it.
struct ConfigValue {
  std::string name;
  std::vector<std::string> values;
};

void flatten(const toml::table& table, const std::string& prefix,
             std::vector<ConfigValue>& result) {
  for (const auto& [key, node] : table) {
    const std::string name =
        prefix.empty() ? std::string(key.str()) : fmt::format("{}-{}", prefix, key.str());
    if (const auto* inner = node.as_table()) {
      flatten(*inner, name, result);
      continue;
    }
    ConfigValue& value = result.emplace_back();
    value.name = name;
    if (const auto* list = node.as_array()) {
      for (const toml::node& element : *list) value.values.push_back(scalar_text(element, name));
    } else {
      value.values.push_back(scalar_text(node, name));
    }
  }
}

std::vector<ConfigValue> read_config(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {  // which opens, and is empty
    throw CLI::FileError(fmt::format("--config {} is a folder: name a TOML file", path));
  }
  std::ifstream file(path);
  if (!file) throw CLI::FileError(fmt::format("--config {}: cannot be read", path));
  std::vector<ConfigValue> values;
  try {
    flatten(toml::parse(file, path), "", values);
  } catch (const toml::parse_error& error) {
    throw CLI::ConfigError(
        fmt::format("{}:{}: {}", path, error.source().begin.line, error.description()));
  } catch (const CLI::ConfigError& error) {
    throw CLI::ConfigError(fmt::format("{}: {}", path, error.what()));
  }
  return values;
}

// Gives the command's options the file's values, except those on the command line.
void apply_config(CLI::App* command, const std::string& path) {
  std::set<std::string> seen;
  for (const ConfigValue& value : read_config(path)) {
    if (!seen.insert(value.name).second) {
      throw CLI::ConfigError(
          fmt::format("{}: key '{}' is given twice: give it once", path, value.name));
    }
    CLI::Option* option = command->get_option_no_throw("--" + value.name);
    if (option == nullptr || value.name == "config") {
      throw CLI::ConfigError(fmt::format("{}: unknown key '{}' (see {} --help)", path, value.name,
                                         words_of(*command)));
    }
    if (!option->empty() || value.values.empty()) continue;
    try {
      if (option->get_expected_max() == 0) {
        if (value.values[0].empty()) {
          throw CLI::ValidationError(option->get_name(), "the value is empty");
        }
        option->add_result(option->get_flag_value(value.name, value.values[0]));
      } else {
        option->add_result(value.values);
      }
      option->run_callback();
    } catch (const CLI::Error& error) {
      throw CLI::ConfigError(fmt::format("{}: {}", path, error.what()));
    }
  }
}

std::string toml_value(const std::string& text) {
  if (text == "true" || text == "false") return text;
  // Numbers go as they are; everything else is a string.
  double number = 0;
  size_t used = 0;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const size_t first = text.find_first_of("+-") == 0 ? 1 : 0;  // digit
  const bool plain = used == text.size() && std::isfinite(number) &&
                     text.find_first_of("0123456789") == first &&
                     text.find_first_not_of("0123456789+-.eE") == std::string::npos &&
                     (text.size() == first + 1 || text[first] != '0' || text[first + 1] == '.') &&
                     text.find(".e") == std::string::npos && text.back() != '.';
  if (plain) return text;
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

// Tells what stands in the place of a model's directory, with a remedy.
void require_model_directory(const std::filesystem::path& directory) {
  const std::string name = directory.string();
  if (std::filesystem::is_regular_file(directory)) {
    const std::string folder = directory.parent_path().string();
    fail("{}: a file, not a model; name its folder {}", name, folder.empty() ? "." : folder);
  }
  if (!std::filesystem::is_directory(directory)) {
    const size_t slash = name.find('/');
    const bool id = slash != std::string::npos && slash > 0 && slash + 1 < name.size() &&
                    slash == name.rfind('/') && name[0] != '.';
    fail("{}: there is no such model directory{}", name,
         id ? fmt::format("; a model of the hub has to be downloaded first: hf download {} "
                          "--local-dir DIR",
                          name)
            : "");
  }
  if (std::filesystem::exists(directory / "config.json") ||
      !std::filesystem::exists(directory / "metrics.jsonl")) {
    return;
  }
  const auto newest = newest_checkpoint(directory / "checkpoints");
  fail("{}: a run, not a model; {}", name,
       newest ? "its newest model is " + newest->string() : "it has no checkpoint yet");
}

// The decimal number that is the whole of `text`, or what is wrong with it.
template <class Number>
std::errc parse_decimal(std::string_view text, Number& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return end == text.data() + text.size() ? error : std::errc::invalid_argument;
}

// Puts a whole number into the form that CLI11 reads as decimal; what is wrong with it otherwise.
std::string normalise_whole(std::string& text) {
  int64_t value = 0;
  const std::errc error = parse_decimal(text, value);
  if (error == std::errc::result_out_of_range) {
    return fmt::format("{} is not in the range of {} to {}", text,
                       std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  }
  if (error != std::errc()) return fmt::format("{} is not a whole number in decimal", text);
  text = fmt::format("{}", value);
  return {};
}

std::string check_real(const std::string& text) {
  double value = 0;
  return parse_decimal(text, value) == std::errc() && std::isfinite(value)
             ? std::string()
             : fmt::format("{} is not a finite number in decimal", text);
}

// CLI11's own checks name the bounds of a double, three hundred digits.
CLI::Validator number_check(const char* name, const char* wanted, bool (*holds)(double)) {
  return {[=](const std::string& text) {
            double value = 0;
            return parse_decimal(text, value) == std::errc() && holds(value)
                       ? std::string()
                       : fmt::format("{} is not a number {}", text, wanted);
          },
          name};
}

// Bytes above 0 of a text like 512MiB, 512M or 1000.
int64_t parse_size(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string number = text.substr(0, digits);
  int64_t bytes = 0;
  if (normalise_whole(number).empty()) {
    try {
      number += text.substr(digits);
      CLI::AsSizeValue(false)(number);
      if (parse_decimal(number, bytes) != std::errc()) bytes = 0;
    } catch (const CLI::ValidationError&) {
      bytes = 0;
    }
  }
  if (bytes <= 0) {
    throw CLI::ValidationError(
        fmt::format("'{}' is not a size above 0 and below 8EiB: write 512MiB or 2GiB", text));
  }
  return bytes;
}

// The first word that its command does not know, in one line; CLI11 lists them all, backwards.
std::optional<std::string> unknown_word(const CLI::App& app) {
  const CLI::App* command = &app;
  while (command->remaining().empty()) {
    const std::vector<CLI::App*> given = command->get_subcommands();
    if (given.empty()) return std::nullopt;
    command = given.front();
  }
  const std::string path = words_of(*command);
  std::string word = command->remaining().front();
  if (!word.starts_with('-')) {
    const bool commands = !command->get_subcommands([](const CLI::App*) { return true; }).empty();
    return fmt::format("unknown {} {}; see {} --help", commands ? "command" : "argument", word,
                       path);
  }
  word = word.substr(0, word.find('='));
  const bool of_train = command->get_name() == "compare" &&
                        app.get_subcommand("train")->get_option_no_throw(word) != nullptr;
  return fmt::format("unknown option {}; {}see {} --help", word,
                     of_train ? "flags of quads train go after --, as in -- --lr 1e-3; " : "",
                     path);
}

// The innermost subcommand that was given.
const CLI::App& given_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// Whether `text` has `name` as a word of its own: --rac-ratio is none in "--rac-ratios".
bool names_option(std::string_view text, const std::string& name) {
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (end == text.size() ||
        (std::isalnum(static_cast<unsigned char>(text[end])) == 0 && text[end] != '-'))
      return true;
  }
  return false;
}

std::atomic<bool> g_stop{false};  // signal handlers can reach nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

std::atomic<int64_t> g_stop_ms{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);

// One stop may arrive more than once: `timeout` signals its child and then the child's group. So a
// second signal is a second wish only if it comes a while after the first.
void on_signal(int signal) {
  constexpr int64_t kSameStopMs = 1000;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t ms = now.tv_sec * int64_t{1000} + now.tv_nsec / 1'000'000;
  if (!g_stop.exchange(true)) {
    g_stop_ms = ms;
  } else if (ms - g_stop_ms >= kSameStopMs) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

void add_config(CLI::App* command) {
  // CLI11's own set_config works on the top command only.
  command->add_option_function<std::string>(
      "--config", [command](const std::string& path) { apply_config(command, path); },
      "TOML file with these options' values");
}

std::string resolved_config(const CLI::App& command, const std::vector<std::string>& leave_out) {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_single_name();
    if (name.empty() || name == "help" || name == "config" ||
        std::ranges::find(leave_out, name) != leave_out.end()) {
      continue;
    }
    std::vector<std::string> values = option->results();
    if (option->get_expected_max() == 0) {  // a flag
      const bool on =
          option->count() > 0 ? option->as<bool>() : option->get_default_str() == "true";
      values = {on ? "true" : "false"};
    } else if (values.empty() && !option->get_default_str().empty()) {
      values = {option->get_default_str()};
      if (values[0] == "[]" || values[0] == "\"\"" || values[0] == "{}") continue;
      if (option->get_expected_max() > 1 && values[0].front() == '[') {  // as CLI11 writes a list
        values = CLI::detail::split(values[0].substr(1, values[0].size() - 2), ',');
      }
    }
    if (values.empty()) continue;
    if (option->get_expected_max() > 1) {
      std::string list;
      for (const std::string& value : values) {
        list += (list.empty() ? "" : ", ") + toml_value(value);
      }
      text += fmt::format("{} = [{}]\n", name, list);
    } else {
      text += fmt::format("{} = {}\n", name, toml_value(values[0]));
    }
  }
  return text;
}

std::string with_origin(const CLI::App& app, const std::vector<std::string>& words,
                        std::string message) {
  const CLI::App& command = given_command(app);
  const CLI::Option* config = command.get_option_no_throw("--config");
  if (config == nullptr || config->empty()) return message;
  const auto given = [&](const std::string& name) {
    return std::ranges::any_of(words, [&](const std::string& word) {
      return word == name || word.starts_with(name + "=");
    });
  };
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = "--" + option->get_single_name();
    if (option != config && !option->empty() && !given(name) && names_option(message, name)) {
      names.push_back(name);
    }
  }
  const std::string file = config->results().front();
  if (names.empty() || message.find(file) != std::string::npos) return message;
  return fmt::format("{} ({} is set in {})", message, fmt::join(names, ", "), file);
}

// CLI11 says "--seed: At Most 1 required but received 2".
std::string usage_error(const CLI::App& app, const CLI::Error& error) {
  std::string text = error.what();
  if (error.get_name() == "ValidationError") return text;  // words left over are flags of train
  if (const auto unknown = unknown_word(app)) return *unknown;
  const size_t at = text.find(": At Most 1 required but received ");
  if (at == std::string::npos) return text;
  return fmt::format("{} is given {} times: give it once", text.substr(0, at),
                     text.substr(text.rfind(' ') + 1));
}

void add_value_checks(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_max() == 0) continue;  // a flag
    const std::string types = option->get_type_name();
    const std::string type = types.substr(0, types.find(':'));
    const bool whole = type == "INT" || type == "UINT", real = type == "FLOAT";
    if (!whole && !real && type != "TEXT") continue;
    const auto check = [=](std::string& text) -> std::string {
      if (text.empty()) return "the value is empty";
      if (whole) return normalise_whole(text);
      return real ? check_real(text) : std::string();
    };
    option->transform(CLI::Validator(check, ""));  // comes first
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    add_value_checks(*command);
  }
}

void require_out_folder(const std::filesystem::path& out) {
  std::filesystem::path there = std::filesystem::absolute(out);
  std::error_code error;
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  require(std::filesystem::is_directory(there, error), "--out {}: {} is a file: choose a folder",
          out.string(), there.string());
}

void make_out_folder(const std::filesystem::path& out) {
  require_out_folder(out);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  require(!error, "--out {}: the folder cannot be made: {}", out.string(), error.message());
}

const CLI::Validator& positive() {
  static const CLI::Validator validator =
      number_check("POSITIVE", "above 0", [](double value) { return value > 0; });
  return validator;
}

const CLI::Validator& not_negative() {
  static const CLI::Validator validator =
      number_check("NONNEGATIVE", "of at least 0", [](double value) { return value >= 0; });
  return validator;
}

const CLI::Validator& share() {
  static const CLI::Validator validator = number_check(
      "SHARE", "above 0 and at most 1", [](double value) { return value > 0 && value <= 1; });
  return validator;
}

CLI::Validator pair_check(const std::string& form) {
  return {[form](const std::string& text) {
            const size_t equals = text.find('=');
            return equals != std::string::npos && equals > 0
                       ? std::string()
                       : fmt::format("'{}': {} is expected", text, form);
          },
          form};
}

void RuntimeOptions::add(CLI::App* command) {
  command->add_option("--threads", threads, "threads; 0: all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->add_option("--isa", isa, "instruction set; auto: the best of this CPU")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "portable", "avx2", "avx512", "amx"}));
}

std::unique_ptr<kernels::CpuRuntime> RuntimeOptions::make() const {
  const kernels::Isa chosen = isa == "auto" ? kernels::best_isa() : kernels::parse_isa(isa);
  require(kernels::isa_available(chosen),
          "--isa {}: this CPU does not have it; the best it has is {}", isa,
          kernels::isa_name(kernels::best_isa()));
  return std::make_unique<kernels::CpuRuntime>(chosen, threads > 0 ? threads : available_cores());
}

CLI::Option* add_kv_memory(CLI::App* command, int64_t& bytes) {
  bytes = int64_t{256} << 20;
  return command->add_option("--kv-memory", bytes, "memory of the KV pages, like 512MiB")
      ->default_str("256MiB")
      ->type_name("SIZE")
      ->transform([](const std::string& text) { return fmt::format("{}", parse_size(text)); });
}

void MicroBatchOptions::add(CLI::App* command) {
  command
      ->add_option("--max-tokens-per-batch", rows,
                   fmt::format("rows of a micro-batch; default {}, on a GPU up to {} as a row's "
                               "memory allows",
                               kMicroBatchRows, kLargestMicroBatch))
      ->check(positive());
}

int64_t MicroBatchOptions::make(Device device, const ModelConfig& model,
                                bool checkpoint_activations) const {
  if (rows) return *rows;
  return device == Device::kCuda ? default_micro_batch(model, checkpoint_activations)
                                 : kMicroBatchRows;
}

CLI::Option* add_device(CLI::App* command, std::string& device) {
  return command->add_option("--device", device, "cpu, or cuda: a GPU")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

void ScopeOptions::add(CLI::App* command) {
  command
      ->add_option("--quantize", quantize, "experts, or linears: attention's and dense layers' too")
      ->capture_default_str()
      ->check(CLI::IsMember({"experts", "linears"}));
  command
      ->add_option("--high-precision-first-layers", scope.high_precision_first_layers,
                   "first layers that stay in BF16")
      ->capture_default_str()
      ->check(not_negative());
  command
      ->add_option("--high-precision-last-layers", scope.high_precision_last_layers,
                   "last layers that stay in BF16")
      ->capture_default_str()
      ->check(not_negative());
}

QuantizeScope ScopeOptions::make(const ModelConfig& model) const {
  QuantizeScope result = scope;
  result.what = parse_quantize(quantize);
  bool any_sparse = false;
  for (int64_t l = 0; l < model.num_hidden_layers; ++l) any_sparse |= model.is_sparse(l);
  require(any_sparse || result.what == QuantizeScope::What::kLinears,
          "--quantize experts: the model has no experts; use --quantize linears");
  require(result.high_precision_first_layers < model.num_hidden_layers &&
              result.high_precision_last_layers <
                  model.num_hidden_layers - result.high_precision_first_layers,
          "--high-precision-first-layers {} and --high-precision-last-layers {} leave nothing to "
          "quantise in {} layers",
          result.high_precision_first_layers, result.high_precision_last_layers,
          model.num_hidden_layers);
  return result;
}

void RacOptions::add(CLI::App* command) {
  command
      ->add_option("--rac-ratio", ratio,
                   "share of channels whose residual is compensated: 0.5 or 50%")
      ->check([](const std::string& text) {
        return parse_share(text) ? std::string()
                                 : fmt::format(
                                       "'{}' is not a share in [0, 1] or a percentage: "
                                       "write 0.5 or 50% for half of the channels",
                                       text);
      });
  command->add_option("--rac-granularity", granularity, "channel, or block of 16 channels")
      ->capture_default_str()
      ->check(CLI::IsMember({"channel", "block"}));
  command->add_flag("--rac-scale-floor", scale_floor,
                    "bound the residual's block scale from below, so that q1 + q2 fits FP16");
}

std::optional<double> parse_share(const std::string& text) {
  const bool percent = text.ends_with('%');
  const std::string_view number(text.data(), text.size() - (percent ? 1 : 0));
  double value = -1;
  if (parse_decimal(number, value) != std::errc()) return std::nullopt;
  if (percent) value /= 100;
  if (!(value >= 0 && value <= 1)) return std::nullopt;
  return value;
}

Rac RacOptions::make(double default_ratio) const {
  return {.ratio = parse_share(ratio).value_or(default_ratio),
          .granularity = parse_granularity(granularity),
          .scale_floor = scale_floor};
}

LoadedModel load_model(const std::filesystem::path& directory, const LoadOptions& options) {
  LoadedModel model;
  require_model_directory(directory);
  OpenedWeights weights = open_weights(directory, options.codes);
  model.files = std::move(weights.files);
  model.stored = std::move(weights.stored);
  const ModelConfig& config = model.config();
  if (options.require_tokenizer || std::filesystem::exists(directory / "tokenizer.json")) {
    model.tokenizer = quads::load_tokenizer(directory);
    require(model.tokenizer->vocab_size() <= config.vocab_size,
            "{}: the tokenizer has {} tokens, the model only {}", directory.string(),
            model.tokenizer->vocab_size(), config.vocab_size);
  }
  const auto generation = load_generation_config(directory);
  model.stop_tokens = generation && !generation->eos_token_ids.empty() ? generation->eos_token_ids
                                                                       : config.eos_token_ids;
  for (const int32_t id : model.stop_tokens) {
    require(id >= 0 && id < config.vocab_size, "{}: eos_token_id {} is not in the vocabulary of {}",
            (directory / "generation_config.json").string(), id, config.vocab_size);
  }
  if (options.into_memory) {
    model.parameters = std::make_unique<Parameters>(load_parameters(*model.files));
  }
  return model;
}

std::string printable(std::string_view text) {
  constexpr size_t kHead = 1500, kTail = 500;
  std::string result;
  for (size_t i = 0; i < text.size();) {
    if (text.size() > kHead + kTail && i >= kHead && i < text.size() - kTail) {
      result += " ... ";
      i = text.size() - kTail;
      while (i < text.size() && (text[i] & 0xC0) == 0x80) ++i;  // no half character
      continue;
    }
    const size_t length = utf8_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return result;
}

const std::atomic<bool>& stop_requested() {
  static const bool installed = [] {
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    return true;
  }();
  (void)installed;
  return g_stop;
}

bool was_stopped() { return g_stop; }

}  // namespace quads::cli
