// quads info: what this program is, what it was built with, and what this machine offers it.
#include <google/protobuf/stubs/common.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <fstream>

#include "cli/generation_options.h"

namespace quads::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string version(int major, int minor, int patch) {
  return fmt::format("{}.{}.{}", major, minor, patch);
}

OrderedJson collect(const RuntimeOptions& options) {
  OrderedJson info;
  info["version"] = QUADS_VERSION;
  info["build"] = QUADS_BUILD_TYPE;
  info["compiler"] = fmt::format("GCC {}", __VERSION__);
  info["cpu"] = cpu_model();
  for (const kernels::Isa isa :
       {kernels::Isa::kPortable, kernels::Isa::kAvx2, kernels::Isa::kAvx512, kernels::Isa::kAmx}) {
    if (kernels::isa_available(isa)) info["isa_available"].push_back(kernels::isa_name(isa));
  }
  const auto runtime = options.make();
  info["isa"] = kernels::isa_name(runtime->context().isa());
  info["cores"] = available_cores();
  info["threads"] = runtime->num_threads();
  info["memory_gib"] = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(sysconf(_SC_PAGESIZE)) / 0x1p30;
  info["libraries"] = {
      {"CLI11", CLI11_VERSION},
      {"fmt", version(FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"nlohmann-json", version(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                NLOHMANN_JSON_VERSION_PATCH)},
      {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)},
      {"toml++", version(TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH)},
      {"torch", QUADS_TORCH_VERSION}};
  return info;
}

std::string text_of(const OrderedJson& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.1f}", value.get<double>());
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const OrderedJson& element : value) text += (text.empty() ? "" : ", ") + text_of(element);
  return text;
}

std::string table_of(const OrderedJson& info) {
  std::string text;
  const auto add = [&text](const std::string& name, const OrderedJson& value) {
    text += fmt::format("{:<16}{}\n", name, text_of(value));
  };
  for (const auto& [key, value] : info.items()) {
    if (!value.is_object()) add(key, value);
  }
  for (const auto& [key, value] : info["libraries"].items()) add(key, value);
  return text;
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("info", "the build, the CPU's instruction sets, libraries");
  struct Options {
    RuntimeOptions runtime;
    JsonOption json;
  };
  const auto o = std::make_shared<Options>();
  add_config(command);
  o->json.add(command);
  o->runtime.add(command);
  command->callback([o] {
    const OrderedJson info = collect(o->runtime);
    o->json.write(table_of(info), info.dump(2) + "\n");
  });
}

}  // namespace quads::cli
