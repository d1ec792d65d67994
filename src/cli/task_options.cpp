#include "cli/task_options.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "compare/child_process.h"
#include "io/json.h"

namespace quads::cli {
namespace {

void list_skipped(const SkippedLines& skipped) {
  if (skipped.bad + skipped.too_long == 0) return;
  std::string text = fmt::format("left out {} malformed lines and {} with too long a prompt:\n",
                                 skipped.bad, skipped.too_long);
  for (const std::string& message : skipped.first) text += "  " + printable(message) + "\n";
  const auto listed = std::ssize(skipped.first);
  if (const int64_t more = skipped.bad + skipped.too_long - listed; more > 0) {
    text += fmt::format("  and {} more\n", more);
  }
  std::fputs(text.c_str(), stderr);
}

// Of the .venv that scripts/setup makes beside a build: <folder>/build/src/cli/quads.
std::string default_python() {
  const std::filesystem::path folder = this_program().parent_path() / "../../..";
  const std::filesystem::path python = (folder / ".venv/bin/python").lexically_normal();
  return std::filesystem::exists(python) ? python.string() : "python3";
}

}  // namespace

void BuiltInTaskOptions::add(CLI::App* command) {
  command->add_option("--task", name, "built-in task: " + task_help())
      ->capture_default_str()
      ->check(CLI::IsMember(task_names()));
  command->add_option("--task-option", options, "option of the task; repeatable")
      ->check(pair_check("KEY=VALUE"));
}

std::unique_ptr<Task> BuiltInTaskOptions::make() const {
  Json json = Json::object();
  for (const std::string& option : options) {
    const size_t equals = option.find('=');
    const std::string key = option.substr(0, equals), text = option.substr(equals + 1);
    require(!json.contains(key), "--task-option {} is given twice", key);
    const Json value = Json::parse(text, nullptr, false);
    json[key] = value.is_discarded() || value.is_structured() ? Json(text) : value;
  }
  return make_task(name, json);
}

void RewardFlags::add(CLI::App* command) {
  command
      ->add_option("--rm-type", options.types,
                   "what scores problems from files; several are added up")
      ->capture_default_str()
      ->delimiter(',')
      ->check(CLI::IsMember(reward_types()));
  command->add_option("--rm-weights", options.weights, "weights of several --rm-type; else 1 each")
      ->delimiter(',');
  command
      ->add_option("--rm-by-source", by_source,
                   "the --rm-type of problems whose data_source is SOURCE; repeatable")
      ->delimiter(',')
      ->check(pair_check("SOURCE=NAME"));
  command->add_option("--rm-command", options.command, "program of --rm-type command");
  command->add_option("--rm-python", python,
                      "Python with math-verify, for --rm-type math; else .venv/bin/python beside "
                      "the build that this program is in, else python3");
  command->add_option("--rm-workers", options.workers, "processes that score; 0: one a core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command
      ->add_option("--rm-timeout", options.timeout_s,
                   "seconds for scoring one response; with --rm-type code, for one test of it")
      ->capture_default_str()
      ->check(positive());
  command
      ->add_option("--code-sandbox", options.code_sandbox,
                   "of --rm-type code: bwrap, or none, for programs that you trust")
      ->capture_default_str()
      ->check(CLI::IsMember({"bwrap", "none"}));
  command->add_flag("--code-fraction", options.code_fraction,
                    "--rm-type code gives the share of the tests passed, not 1 for all of them");
}

RewardOptions RewardFlags::parsed() const {
  RewardOptions result = options;
  result.python = python.empty() ? default_python() : python;
  for (const std::string& entry : by_source) {
    const size_t equals = entry.rfind('=');
    const std::string source = entry.substr(0, equals), type = entry.substr(equals + 1);
    const auto [before, is_new] = result.by_source.emplace(source, type);
    require(is_new, "--rm-by-source {}={}: {}={} is given too: give one of them", source, type,
            source, before->second);
  }
  return result;
}

void RewardFlags::require_used(const std::set<std::string>& types, const std::string& why) const {
  const RewardOptions defaults;
  const auto check = [&](bool given, std::string_view option, const std::set<std::string>& users) {
    const bool used =
        std::ranges::any_of(users, [&](const std::string& user) { return types.contains(user); });
    require(!given || used, "{} is for --rm-type {}, which scores nothing here: {}", option,
            fmt::join(users, " or "), why);
  };
  check(!options.command.empty(), "--rm-command", {"command"});
  check(!python.empty() && python != defaults.python, "--rm-python", {"math"});
  check(options.code_sandbox != defaults.code_sandbox, "--code-sandbox", {"code"});
  check(options.code_fraction, "--code-fraction", {"code"});
  check(options.workers != defaults.workers, "--rm-workers", {"code", "command", "math"});
  check(options.timeout_s != defaults.timeout_s, "--rm-timeout", {"code", "command", "math"});
}

std::unique_ptr<Reward> RewardFlags::make(const LoadedModel& model,
                                          std::set<std::string> by_problem) const {
  RewardOptions result = parsed();
  result.cancel = &stop_requested();
  result.by_problem = std::move(by_problem);
  std::set<std::string> used = result.by_problem;
  used.insert(result.types.begin(), result.types.end());
  for (const auto& [source, type] : result.by_source) used.insert(type);
  if (model.tokenizer) {
    for (const int32_t& token : model.stop_tokens) {
      result.stops.push_back(model.tokenizer->decode(std::span(&token, 1)));
    }
  }
  require_used(used, fmt::format("in use are {}", fmt::join(used, ", ")));
  return make_reward(result);
}

void RewardFlags::require_none(const std::string& task) const {
  const RewardOptions defaults;
  const std::string why = fmt::format("task {} has its own reward; it is for --prompt-data", task);
  require(options.types == defaults.types, "--rm-type {}: {}", fmt::join(options.types, ","), why);
  require(options.weights.empty(), "--rm-weights: {}", why);
  require(by_source.empty(), "--rm-by-source: {}", why);
  require_used({}, why);
}

void TaskOptions::add(CLI::App* command) {
  built_in.add(command);
  command->add_option("--prompt-data", prompt_data,
                      "JSONL with problems to train on, instead of a built-in task");
  command->add_option("--eval-data", eval_data, "JSONL with problems to evaluate on");
  add_format(command);
  switches.push_back(command
                         ->add_flag("--rollout-shuffle,!--no-rollout-shuffle", data.shuffle,
                                    "go through the training file in a new random order each time")
                         ->default_str("true"));
  rewards.add(command);
}

void TaskOptions::add_format(CLI::App* command) {
  ProblemFormat& format = data.format;
  command->add_option("--input-key", format.input_key,
                      "field of the prompt: a.b is b in a; else prompt, problem, question or "
                      "question_content");
  command->add_option("--label-key", format.label_key,
                      "field of the right answer; else label, reward_model.ground_truth or answer");
  command->add_option("--metadata-key", format.metadata_key,
                      "field of what the reward sees too; else metadata or extra_info");
  command
      ->add_option("--prompt-template", format.prompt_template,
                   "text around prompts that are texts, with {prompt} in it; empty: none")
      ->type_name("TEMPLATE")
      ->check([](const std::string& text) {
        return text.empty() || text.find("{prompt}") != std::string::npos
                   ? std::string()
                   : fmt::format("'{}' has no {{prompt}}, which says where the prompt goes", text);
      });
  command->add_flag("--apply-chat-template", format.apply_chat_template,
                    "render prompts, texts or lists of messages, for a chat model");
  command
      ->add_option("--chat-template", chat_template,
                   "chatml, as Qwen3 has it; scripts/render_prompts.py renders others")
      ->capture_default_str()
      ->check(CLI::IsMember({"chatml"}));
  switches.push_back(command
                         ->add_flag("--enable-thinking,!--no-enable-thinking",
                                    format.enable_thinking,
                                    "without it, chatml starts the answer with an empty thought")
                         ->default_str("true"));
  command->add_option("--on-bad-data", on_bad_data, "error, or skip: malformed lines are left out")
      ->capture_default_str()
      ->check(CLI::IsMember({"error", "skip"}));
  command
      ->add_option("--rollout-max-prompt-len", data.max_prompt_tokens,
                   "problems with longer prompts are left out, tokens; 0: none")
      ->capture_default_str()
      ->check(not_negative());
}

void TaskOptions::check() const {
  for (const CLI::Option* option : switches) {
    const std::vector<std::string>& given = option->results();
    require(std::ranges::adjacent_find(given, std::not_equal_to<>()) == given.end(),
            "--{0} and --no-{0} are both given: give one of them", option->get_single_name());
  }
  if (!from_files() && built_in.make()->reward() != nullptr) {
    rewards.require_none(built_in.name);
    return;
  }
  quads::check(rewards.parsed());
  require(!from_files() || (built_in.options.empty() && built_in.name == BuiltInTaskOptions{}.name),
          "--task and --task-option are for a built-in task: the problems come from {}",
          prompt_data.empty() ? eval_data : prompt_data);
}

std::unique_ptr<Task> TaskOptions::make(const LoadedModel& model) const {
  if (!from_files()) return built_in.make();
  JsonlOptions options = data;
  options.train = prompt_data;
  options.eval = eval_data;
  options.skip_bad_data = on_bad_data == "skip";
  options.format.needs_label = [reward = rewards.parsed()](const Json* metadata) {
    for (const std::string& type : rewards_of(reward, metadata)) {
      if (needs_label(type)) return true;
    }
    return false;
  };
  if (model.tokenizer) {
    options.count_tokens = [&model](std::string_view text) {
      return std::ssize(model.tokenizer->encode(text));
    };
  }
  auto task = std::make_unique<JsonlTask>(options);
  list_skipped(task->skipped());
  return task;
}

std::unique_ptr<Reward> TaskOptions::make_reward(const Task& task, const LoadedModel& model) const {
  if (std::unique_ptr<Reward> own = task.reward()) return own;
  return rewards.make(model, task.reward_types());
}

}  // namespace quads::cli
