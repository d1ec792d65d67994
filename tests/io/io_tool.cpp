// Reads and writes files on request, so that tests/oracle can hold them against other libraries.
#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "io/generation_config.h"
#include "io/model_config.h"
#include "io/safetensors_writer.h"
#include "io/tensor_store.h"
#include "tool_main.h"

namespace quads {
namespace {

namespace fs = std::filesystem;

std::string hex(const TensorView& tensor) {
  std::string text;
  for (size_t i = 0; i < tensor.nbytes; ++i) {
    text += fmt::format("{:02x}", static_cast<unsigned>(tensor.data[i]));
  }
  return text;
}

// Prints every tensor of a file or directory: name, dtype, shape, bytes in hexadecimal.
void dump(const fs::path& path) {
  Json json = Json::object();
  const TensorStore store(path);
  for (const TensorView& tensor : store.tensors()) {
    json[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"hex", hex(tensor)}};
  }
  fmt::print("{}\n", json.dump());
}

void run(const std::vector<std::string>& args) {
  require(args.size() >= 2, "usage: io_tool COMMAND PATH...");
  const std::string& command = args[0];
  if (command == "dump") {
    dump(args[1]);
  } else if (command == "rewrite") {  // IN OUT MAX_SHARD_BYTES
    write_model_tensors(args.at(2), TensorStore(args[1]).tensors(), std::stoull(args.at(3)));
  } else if (command == "config") {  // IN OUT
    save_model_config(load_model_config(args[1]), args.at(2));
  } else if (command == "generation-config") {  // IN OUT
    const auto config = load_generation_config(args[1]);
    require(config.has_value(), "no generation_config.json");
    save_generation_config(*config, args.at(2));
  } else {
    fail("unknown command '{}'", command);
  }
}

}  // namespace
}  // namespace quads

int main(int argc, char** argv) {
  return quads::tool_main([&] { quads::run({argv + 1, argv + argc}); });
}
