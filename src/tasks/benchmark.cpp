#include "tasks/benchmark.h"

#include <optional>

#include "base/error.h"
#include "io/jsonl.h"

namespace quads {

BenchmarkForm benchmark_form(const std::filesystem::path& path) {
  std::optional<BenchmarkForm> form;
  for_each_line(path, [&](std::string_view text, const std::string& where) {
    if (form) return;
    const Json line = parse_jsonl_line(text, where);
    if (line.contains("question_content")) {
      form = {.reward = "code", .prompt_template = "", .live_code_bench = true};
      return;
    }
    require(line.contains("answer"),
            "{}: neither 'answer' (AIME, HMMT) nor 'question_content' (LiveCodeBench) is there; "
            "other files are given by --eval-data",
            where);
    form = {.reward = "math",
            .prompt_template =
                "{prompt}\n\nPlease reason step by step, and put your final answer "
                "within \\boxed{}."};
  });
  require(form.has_value(), "{}: no problems in it", path.string());
  return *form;
}

}  // namespace quads
