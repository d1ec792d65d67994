// Options that say what is asked, and what scores the answers.
#pragma once

#include <memory>
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
  std::vector<std::string> by_source;  // SOURCE=NAME
  void add(CLI::App* command);
  /// The options with by_source taken apart; usage error for an entry without '='.
  RewardOptions parsed() const;
  /// The same with the model's stop tokens and this process's signals, to make a reward from.
  RewardOptions parsed_for(const LoadedModel& model) const;
};

/// A built-in task or files of problems, with what scores them.
struct TaskOptions {
  BuiltInTaskOptions built_in;
  std::string prompt_data{}, eval_data{};
  std::string on_bad_data = "error";
  std::string chat_template = "chatml";
  JsonlOptions data;
  RewardFlags rewards;

  void add(CLI::App* command);
  /// The reading options alone, without --prompt-data and --eval-data.
  void add_format(CLI::App* command);
  bool from_files() const { return !prompt_data.empty() || !eval_data.empty(); }
  /// Lists on stderr what was left out of the files.
  std::unique_ptr<Task> make(const LoadedModel& model) const;
  /// The task's own reward, or what --rm-type names; Error for both.
  std::unique_ptr<Reward> make_reward(const Task& task, const LoadedModel& model) const;
};

}  // namespace quads::cli
