// What a task is: problems to train and to evaluate on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/fingerprint.h"
#include "io/json.h"
#include "rewards/reward.h"
#include "tokenizer/character_tokenizer.h"

namespace quads {

struct Problem {
  int64_t index = 0;  // of the training draw, or of the evaluation problem
  std::string prompt;
  std::string label{};                     // the right answer; empty where the reward needs none
  std::shared_ptr<const Json> metadata{};  // an object, for the reward; null if there is none
};

/// To add a task, write one file with a class like this and a function that makes it from options,
/// and add the function's line to registry.cpp. All functions are pure: the same arguments give the
/// same result, from any thread.
class Task {
 public:
  virtual ~Task() = default;

  /// The `index`-th training problem under `seed`; any index >= 0.
  virtual Problem train_problem(uint64_t seed, int64_t index) const = 0;

  /// Evaluation problems, none of which is ever a training problem; 0 if the task has none. `index`
  /// is in [0, num_eval_problems()); the order is fixed.
  virtual int64_t num_eval_problems() const = 0;
  virtual Problem eval_problem(int64_t index) const = 0;

  /// The task's own reward, which sees responses with the stop token's text; null if it has none,
  /// and make_reward's are to score it.
  virtual std::unique_ptr<Reward> reward() const { return nullptr; }

  /// What its problems' metadata name as "rm_type": rewards that make_reward is to prepare.
  virtual std::set<std::string> reward_types() const { return {}; }

  /// Problems of its files that were left out: malformed, or with too long a prompt.
  virtual int64_t num_skipped() const { return 0; }

  /// The file that the training problems come from: a run is continued with the same one only.
  /// Nothing if there is none.
  virtual std::optional<FileFingerprint> training_file() const { return std::nullopt; }

  /// A response to learn from by supervision, or nothing if the task has none to give.
  virtual std::optional<std::string> solution(const Problem& /*problem*/, uint64_t /*seed*/) const {
    return std::nullopt;
  }

  /// The characters of the task's texts, for tasks that bring their own vocabulary.
  virtual std::optional<CharacterVocabulary> vocabulary() const { return std::nullopt; }
};

/// Makes the task `name` from its options, a JSON object (the task's table in the configuration).
/// Error for an unknown name, an unknown option, or an option's value out of range.
std::unique_ptr<Task> make_task(const std::string& name, const Json& options);

/// The names that make_task knows, sorted.
std::vector<std::string> task_names();

/// "jsonl (options ...), multiply (options ...)": for --help.
std::string task_help();

/// Error for a key of `options` that is not one of `known`; for the makers of tasks.
void require_known_options(const Json& options, const std::vector<std::string>& known,
                           const std::string& where);

}  // namespace quads
