// Prints the problems of a data file, so that tests/oracle can hold the prompts against other
// people's: data_tool FILE THINKING, with THINKING 0 or 1. Chat templates are applied.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "io/json.h"
#include "tasks/jsonl_task.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const quads::JsonlTask task({.eval = argv[1],
                                 .format = {.apply_chat_template = true,
                                            .enable_thinking = std::string_view(argv[2]) == "1"}});
    for (int64_t i = 0; i < task.num_eval_problems(); ++i) {
      const quads::Problem problem = task.eval_problem(i);
      quads::Json line = {{"prompt", problem.prompt}, {"label", problem.label}};
      if (problem.metadata) line["metadata"] = *problem.metadata;
      fmt::print("{}\n", line.dump());
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
