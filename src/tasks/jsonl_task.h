// Problems from JSON Lines files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/problem_format.h"
#include "tasks/task.h"

namespace quads {

struct JsonlOptions {
  std::filesystem::path train{};  // may be empty if only evaluated
  std::filesystem::path eval{};   // may be empty
  ProblemFormat format{};
  /// Leave malformed lines out, instead of an error at the first.
  bool skip_bad_data = false;
  /// A new random order each time the training file is gone through; else the file's.
  bool shuffle = true;
  /// Problems with a longer prompt are left out; 0 keeps all.
  int64_t max_prompt_tokens = 0;
  /// Error for a prompt that cannot be encoded, which makes its line malformed. Needed for
  /// max_prompt_tokens; without it no prompt is tried.
  std::function<int64_t(std::string_view)> count_tokens{};
};

/// Lines that were left out of the files.
struct SkippedLines {
  int64_t bad = 0;                 // malformed
  int64_t too_long = 0;            // of more than max_prompt_tokens
  std::vector<std::string> first;  // the messages of the first ten, each with file and line
};

/// The problem at a place is a function of seed and index, so a run continues in mid-pass wherever
/// it stopped.
class JsonlTask : public Task {
 public:
  /// Errors name file and line; among them a prompt of `eval` that is also one of `train`, and a
  /// file of which nothing is left.
  explicit JsonlTask(const JsonlOptions& options);

  /// Error if no training file was given.
  Problem train_problem(uint64_t seed, int64_t index) const override;
  int64_t num_eval_problems() const override { return static_cast<int64_t>(eval_.size()); }
  /// In the file's order.
  Problem eval_problem(int64_t index) const override;
  int64_t num_skipped() const override { return skipped_.bad + skipped_.too_long; }
  std::set<std::string> reward_types() const override;
  std::optional<FileFingerprint> training_file() const override { return training_file_; }

  const SkippedLines& skipped() const { return skipped_; }

 private:
  bool shuffle_;
  SkippedLines skipped_;
  std::optional<FileFingerprint> training_file_;
  std::vector<Problem> train_;
  std::vector<Problem> eval_;
};

}  // namespace quads
