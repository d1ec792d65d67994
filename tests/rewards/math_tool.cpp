// Scores responses on request, so that tests/oracle can hold the math reward against math-verify.
// Reads a JSON line {"label", "response"} each and prints a JSON line {"value", "failure",
// "in_process", "normal"} each. Arguments: the Python with math-verify, seconds a response,
// workers.
#include <cstdio>
#include <iostream>

#include "rewards/math_answer.h"
#include "rewards/math_compare.h"
#include "rewards/math_reward.h"
#include "tool_main.h"

namespace quads {
namespace {

struct Pair {
  std::string label;
  std::string response;
};

bool decided_in_process(const Pair& pair) {
  const auto label = label_answer(pair.label);
  const auto answer = response_answer(pair.response);
  return !label || !answer || compare_math_answers(*label, *answer) != MathVerdict::kUndecided;
}

void run(const std::string& python, double timeout_s, int workers) {
  const auto reward =
      make_math_reward({.python = python, .workers = workers, .timeout_s = timeout_s});
  std::vector<Pair> pairs;
  for (std::string line; std::getline(std::cin, line);) {
    const Json json = parse_json(line, "standard input");
    pairs.push_back({json.at("label"), json.at("response")});
  }
  std::vector<RewardRequest> requests;
  for (const Pair& pair : pairs) {
    requests.push_back({.response = pair.response, .label = pair.label});
  }
  const std::vector<RewardResult> results = reward->score(requests);
  for (size_t i = 0; i < results.size(); ++i) {
    const Json line = {{"value", results[i].value},
                       {"failure", results[i].failure},
                       {"in_process", decided_in_process(pairs[i])},
                       {"normal", reward->normal_answer(requests[i]).value_or("")}};
    fmt::print("{}\n", line.dump());
  }
}

}  // namespace
}  // namespace quads

int main(int argc, char** argv) {
  return quads::tool_main([&] {
    quads::require(argc == 4, "usage: math_tool PYTHON SECONDS WORKERS");
    quads::run(argv[1], std::stod(argv[2]), std::stoi(argv[3]));
  });
}
