// The model as a program for tests/oracle/test_model.py: JSON on stdin says what to do, numbers go
// to raw files.
#include <cstdio>
#include <iostream>

#include "model/reference.h"
#include "tests/model/tool_options.h"
#include "tool_main.h"

namespace quads::testing {
namespace {

using nlohmann::json;

std::vector<float> logits(const json& in) {
  const Parameters parameters = load_parameters(in.at("model").get<std::string>());
  const auto tokens = in.at("tokens").get<std::vector<int32_t>>();
  if (in.at("precision") == "reference") return reference_logits(parameters, tokens);
  Side side(parameters, side_options(in));
  WholeSequences sequences(side, {tokens});
  return run_logits(side, sequences);
}

void run(const json& in) {
  const auto function = in.at("function").get<std::string>();
  if (function == "init") {  // a seeded model of the configuration in `model`, saved to `out`
    Parameters parameters(load_model_config(in.at("model").get<std::string>()));
    parameters.initialise(in.at("seed").get<uint64_t>());
    save_parameters(parameters, in.at("out").get<std::string>());
  } else if (function == "copy") {  // loaded and saved again
    save_parameters(load_parameters(in.at("model").get<std::string>()),
                    in.at("out").get<std::string>());
  } else if (function == "logits") {  // [tokens, vocab] FP32
    write_floats(in.at("out").get<std::string>(), logits(in));
  } else {
    fail("unknown function '{}'", function);
  }
}

}  // namespace
}  // namespace quads::testing

int main() {
  return quads::tool_main([] { quads::testing::run(nlohmann::json::parse(std::cin)); });
}
