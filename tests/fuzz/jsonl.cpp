// Fuzzes data files: JSON Lines, the problems that they hold in any of the known formats, and the
// tests of code problems.
#include "io/jsonl.h"

#include <sys/mman.h>
#include <unistd.h>

#include "fuzz/fuzz.h"
#include "fuzz/json_words.h"
#include "io/file.h"
#include "rewards/test_cases.h"
#include "tasks/problem_format.h"

namespace quads {
namespace {

// The readers map a file; this one has no name once it is open.
class InputFile {
 public:
  InputFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(fd_.get() >= 0, "memfd: {}", errno_text());
  }
  std::filesystem::path write(std::string_view input) {
    require(::ftruncate(fd_.get(), 0) == 0, "memfd: {}", errno_text());
    require(::lseek(fd_.get(), 0, SEEK_SET) == 0, "memfd: {}", errno_text());
    write_all(fd_.get(), std::as_bytes(std::span(input)), "memfd");
    return fmt::format("/proc/self/fd/{}", fd_.get());
  }

 private:
  UniqueFd fd_;
};

// Errors of one line do not keep the next from being read.
template <class F>
void ignoring_errors(F&& function) {
  try {
    function();
  } catch (const Error&) {
  }
}

void read_line(const Json& line, const std::string& where) {
  for (const char* key : {"", "metadata.prompt"}) {
    for (const bool live_code_bench : {false, true}) {
      ignoring_errors([&] {
        const ProblemFormat format{.input_key = key,
                                   .live_code_bench_prompts = live_code_bench,
                                   .apply_chat_template = !live_code_bench};
        const Problem problem = read_problem(line, format, where);
        const TestCases tests = parse_test_cases(problem.label, problem.metadata.get());
        fuzz_check(!tests.cases.empty(), "a code problem has tests");
      });
    }
  }
}

}  // namespace

std::vector<std::string> fuzz_corpus() {
  return {
      "{\"prompt\":\"2+2?\",\"label\":\"4\"}\n"
      "{\"prompt\":[{\"role\":\"system\",\"content\":\"Be "
      "brief.\"},{\"role\":\"user\",\"content\":\"é"
      "?\"}],\"label\":4,\"metadata\":{\"rm_type\":\"math\"}}\r\n\n",
      "{\"problem\":\"x\",\"answer\":[\"1\"],\"extra_info\":{\"index\":0},\"data_source\":"
      "\"aime\"}",
      "{\"prompt\":[{\"role\":\"user\",\"content\":\"x\"}],\"reward_model\":{\"ground_truth\":\"{"
      "\\\"inputs\\\": [\\\"1\\\\n\\\"], \\\"outputs\\\": [\\\"2\\\\n\\\"], \\\"fn_name\\\": "
      "null}\"}}\n",
      "{\"question_content\":\"Add.\",\"starter_code\":\"def "
      "f(a):\",\"metadata\":\"{\\\"func_name\\\":"
      " \\\"f\\\"}\",\"public_test_cases\":\"[{\\\"input\\\": \\\"[1]\\\", \\\"output\\\": "
      "\\\"1\\\", "
      "\\\"testtype\\\": "
      "\\\"functional\\\"}]\",\"private_test_cases\":[{\"input\":\"[2]\",\"output\":\"2"
      "\",\"testtype\":\"functional\"}]}\n"
      "{\"question_content\":\"Echo.\",\"starter_code\":\"\",\"metadata\":{},\"public_test_cases\":"
      "[{"
      "\"input\":\"1\",\"output\":\"1\",\"testtype\":\"stdin\"}]}\n",
  };
}

std::vector<std::string> fuzz_words() {
  return with_json_words({"\"prompt\":",
                          "\"label\":",
                          "\"metadata\":",
                          "\"reward_model\":",
                          "\"ground_truth\":",
                          "\"extra_info\":",
                          "\"role\":",
                          "\"content\":",
                          "\"system\"",
                          "\"user\"",
                          "\"assistant\"",
                          "\"tool\"",
                          "\"inputs\":",
                          "\"outputs\":",
                          "\"fn_name\":",
                          "\"func_name\":",
                          "\"testtype\":",
                          "\"functional\"",
                          "\"stdin\"",
                          "\"public_test_cases\":",
                          "\"private_test_cases\":",
                          "\"question_content\":",
                          "\"starter_code\":",
                          "eJxrYJ",
                          "\r\n",
                          "\n\n",
                          "\n{}\n",
                          "\xe2\x80\xa8"});
}

void fuzz_one(std::string_view input) {
  static InputFile file;
  const std::filesystem::path path = file.write(input);
  size_t lines = 0;
  for_each_line(path, [&](std::string_view text, const std::string& where) {
    ++lines;
    ignoring_errors([&] {
      const Json line = parse_jsonl_line(text, where);
      fuzz_check(parse_jsonl_line(line.dump(), where) == line,
                 "a line that was written is read as it was");
      read_line(line, where);
    });
  });
  size_t documents = 0;
  for_each_jsonl(path, [&](const Json&, const std::string&) { ++documents; });
  fuzz_check(documents == lines, "every line that is not blank is a document");
}

}  // namespace quads
