// Prints the problems of a data file, so that tests/oracle can hold the prompts against other
// people's: data_tool FILE THINKING, with THINKING 0 or 1. Chat templates are applied.
#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "io/json.h"
#include "tasks/jsonl_task.h"
#include "tool_main.h"

namespace quads {
namespace {

void print_problems(const char* file, bool thinking) {
  const JsonlTask task(
      {.eval = file, .format = {.apply_chat_template = true, .enable_thinking = thinking}});
  for (int64_t i = 0; i < task.num_eval_problems(); ++i) {
    const Problem problem = task.eval_problem(i);
    Json line = {{"prompt", problem.prompt}, {"label", problem.label}};
    if (problem.metadata) line["metadata"] = *problem.metadata;
    fmt::print("{}\n", line.dump());
  }
}

}  // namespace
}  // namespace quads

int main(int argc, char** argv) {
  return quads::tool_main([&] {
    quads::require(argc == 3, "usage: data_tool FILE THINKING");
    quads::print_problems(argv[1], std::string_view(argv[2]) == "1");
  });
}
