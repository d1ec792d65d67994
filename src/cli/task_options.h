// Options that say what is asked, and what scores the answers.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/command.h"
#include "rewards/reward.h"
#include "tasks/jsonl_task.h"
#include "tasks/task.h"

namespace quads::cli {

/// --task NAME and --task-option KEY=VALUE...: a built-in task.
struct BuiltInTaskOptions {
  std::string name = "multiply";
  std::vector<std::string> options{};
  void add(CLI::App* command);
  std::unique_ptr<Task> make() const;
};

/// --rm-*: what scores responses to problems from files.
struct RewardFlags {
  RewardOptions options;
  std::string python;                  // empty: of the .venv beside the build, else in PATH
  std::vector<std::string> by_source;  // SOURCE=NAME
  void add(CLI::App* command);
  /// The options with by_source taken apart.
  RewardOptions parsed() const;
  /// Error for an option that none of the rewards in `types` reads; `why` ends the message. Only
  /// values other than the defaults count, since a run's config.toml has all options.
  void require_used(const std::set<std::string>& types, const std::string& why) const;
  /// Error for any of them: `task` has its own reward.
  void require_none(const std::string& task) const;
  /// The reward for problems that name those in `by_problem` themselves. Error as above.
  std::unique_ptr<Reward> make(const LoadedModel& model, std::set<std::string> by_problem) const;
};

/// A built-in task or files of problems, with what scores them.
struct TaskOptions {
  BuiltInTaskOptions built_in;
  std::string prompt_data{}, eval_data{};
  std::string on_bad_data = "error";
  std::string chat_template = "chatml";
  JsonlOptions data;
  RewardFlags rewards;
  std::vector<const CLI::Option*> switches;  // with a --no-

  void add(CLI::App* command);
  /// The reading options alone, without --prompt-data and --eval-data.
  void add_format(CLI::App* command);
  bool from_files() const { return !prompt_data.empty() || !eval_data.empty(); }
  /// Error for what is wrong whatever the files hold.
  void check() const;
  /// Lists on stderr what was left out of the files.
  std::unique_ptr<Task> make(const LoadedModel& model) const;
  /// The task's own reward, or what --rm-type names; Error for options of a reward
  /// that is not used.
  std::unique_ptr<Reward> make_reward(const Task& task, const LoadedModel& model) const;
};

}  // namespace quads::cli
