// Prompts with known answers from a file, rewarded for an exact match.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/task.h"

namespace quads {

struct JsonlOptions {
  std::filesystem::path train{};  // may be empty if only evaluated
  std::filesystem::path eval{};   // may be empty
  std::string stop{};             // taken off the response's end before it is compared
};

/// Each line of a file is {"prompt": "...", "label": "..."}, as slime writes it; other keys are
/// ignored. Training goes through the whole file in a new random order each time round. Reward: 1
/// if response and label are equal but for white space at both ends, else 0.
class JsonlTask : public Task {
 public:
  /// Errors name file and line; among them a prompt of `eval` that is also one of `train`.
  explicit JsonlTask(const JsonlOptions& options);

  /// Error if no training file was given.
  Problem train_problem(uint64_t seed, int64_t index) const override;
  int64_t num_eval_problems() const override { return static_cast<int64_t>(eval_.size()); }
  /// In the file's order.
  Problem eval_problem(int64_t index) const override;
  double reward(const Problem& problem, std::string_view response) const override;

 private:
  std::string stop_;
  std::vector<Problem> train_;
  std::vector<Problem> eval_;
};

/// Options: train, eval (paths), stop. One of the paths at least.
std::unique_ptr<Task> make_jsonl_task(const Json& options);

}  // namespace quads
