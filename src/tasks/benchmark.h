// What the form of a benchmark's file says about how it is asked and scored.
#pragma once

#include <filesystem>
#include <string>

namespace quads {

struct BenchmarkForm {
  std::string reward;           // for RewardOptions::types
  std::string prompt_template;  // for ProblemFormat
  bool live_code_bench = false;
};

/// From the file's first line: one with "question_content" is LiveCodeBench's, scored by `code`;
/// one with "answer" is AIME's and HMMT's, scored by `math` and asked with the instruction to put
/// the final answer into \boxed{}. Error for any other.
BenchmarkForm benchmark_form(const std::filesystem::path& path);

}  // namespace quads
