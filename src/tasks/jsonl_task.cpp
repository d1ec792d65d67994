// Problems from JSON Lines files.
#include "tasks/jsonl_task.h"

#include <unordered_set>

#include "base/error.h"
#include "io/jsonl.h"
#include "tasks/permutation.h"

namespace quads {
namespace {

std::vector<Problem> read_problems(const std::filesystem::path& path,
                                   const std::unordered_set<std::string>& training_prompts) {
  std::vector<Problem> problems;
  for_each_jsonl(path, [&](const Json& line, const std::string& where) {
    Problem problem{static_cast<int64_t>(problems.size()), get<std::string>(line, "prompt", where),
                    get<std::string>(line, "label", where)};
    require(!problem.prompt.empty(), "{}: 'prompt' is empty", where);
    require(!training_prompts.contains(problem.prompt),
            "{}: this prompt is also in the training file", where);
    problems.push_back(std::move(problem));
  });
  require(!problems.empty(), "{}: no problems in it", path.string());
  return problems;
}

std::string_view trim(std::string_view text) {
  constexpr const char* kWhiteSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  return begin == std::string_view::npos
             ? std::string_view()
             : text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

}  // namespace

JsonlTask::JsonlTask(const JsonlOptions& options) : stop_(options.stop) {
  require(!options.train.empty() || !options.eval.empty(),
          "task jsonl: neither 'train' nor 'eval' names a file");
  std::unordered_set<std::string> training_prompts;
  if (!options.train.empty()) {
    train_ = read_problems(options.train, {});
    for (const Problem& problem : train_) {
      training_prompts.insert(problem.prompt);
    }
  }
  if (!options.eval.empty()) {
    eval_ = read_problems(options.eval, training_prompts);
  }
}

Problem JsonlTask::train_problem(uint64_t seed, int64_t index) const {
  require(!train_.empty(), "task jsonl: no training file was given (option 'train')");
  const uint64_t size = train_.size();
  const auto position = static_cast<uint64_t>(index);
  const Permutation order(size, seed, static_cast<uint32_t>(position / size));
  Problem problem = train_[order(position % size)];
  problem.index = index;
  return problem;
}

Problem JsonlTask::eval_problem(int64_t index) const {
  require(index >= 0 && index < num_eval_problems(),
          "task jsonl: evaluation problem {} of {} does not exist", index, num_eval_problems());
  return eval_[static_cast<size_t>(index)];
}

double JsonlTask::reward(const Problem& problem, std::string_view response) const {
  if (!stop_.empty() && response.ends_with(stop_)) {
    response.remove_suffix(stop_.size());
  }
  return trim(response) == trim(problem.label) ? 1.0 : 0.0;
}

std::unique_ptr<Task> make_jsonl_task(const Json& options) {
  const std::string where = "task jsonl";
  require_known_options(options, {"train", "eval", "stop"}, where);
  const auto text = [&](const char* key) { return get_or<std::string>(options, key, "", where); };
  return std::make_unique<JsonlTask>(
      JsonlOptions{.train = text("train"), .eval = text("eval"), .stop = text("stop")});
}

}  // namespace quads
