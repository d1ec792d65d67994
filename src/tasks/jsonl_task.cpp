#include "tasks/jsonl_task.h"

#include <unordered_set>

#include "base/error.h"
#include "io/jsonl.h"
#include "tasks/permutation.h"

namespace quads {
namespace {

using Prompts = std::unordered_set<std::string_view>;

int64_t count_tokens(const std::string& prompt, const JsonlOptions& options,
                     const std::string& where) {
  try {
    return options.count_tokens(prompt);
  } catch (const Error& error) {
    fail("{}: the prompt: {}", where, error.what());
  }
}

std::vector<Problem> read_problems(const std::filesystem::path& path, const JsonlOptions& options,
                                   const Prompts& training_prompts, SkippedLines& skipped) {
  constexpr size_t kListed = 10;
  const auto skip = [&](int64_t& count, std::string message) {
    ++count;
    if (skipped.first.size() < kListed) skipped.first.push_back(std::move(message));
  };
  const SkippedLines before = skipped;
  std::vector<Problem> problems;
  for_each_line(path, [&](std::string_view line, const std::string& where) {
    try {
      Problem problem = read_problem(parse_jsonl_line(line, where), options.format, where);
      require(!training_prompts.contains(problem.prompt),
              "{}: this prompt is also in the training file", where);
      problem.index = std::ssize(problems);
      if (options.count_tokens) {
        const int64_t tokens = count_tokens(problem.prompt, options, where);
        if (options.max_prompt_tokens > 0 && tokens > options.max_prompt_tokens) {
          skip(skipped.too_long, fmt::format("{}: the prompt has {} tokens, more than {}", where,
                                             tokens, options.max_prompt_tokens));
          return;
        }
      }
      problems.push_back(std::move(problem));
    } catch (const Error& error) {
      if (!options.skip_bad_data) throw;
      skip(skipped.bad, error.what());
    }
  });
  const int64_t left_out = skipped.bad + skipped.too_long - before.bad - before.too_long;
  const size_t own = before.first.size();  // where this file's messages begin
  require(!problems.empty() || left_out == 0, "{}: all {} lines were left out; first: {}",
          path.string(), left_out, own < skipped.first.size() ? skipped.first[own] : "not listed");
  require(!problems.empty(), "{}: no problems in it", path.string());
  return problems;
}

}  // namespace

JsonlTask::JsonlTask(const JsonlOptions& options) : shuffle_(options.shuffle) {
  require(!options.train.empty() || !options.eval.empty(),
          "neither --prompt-data nor --eval-data names a file");
  require(options.max_prompt_tokens == 0 || options.count_tokens,
          "a limit of {} prompt tokens needs a tokenizer", options.max_prompt_tokens);
  if (!options.train.empty()) {
    training_file_ = fingerprint(options.train);
    train_ = read_problems(options.train, options, {}, skipped_);
  }
  if (!options.eval.empty()) {
    Prompts training_prompts;
    for (const Problem& problem : train_) training_prompts.insert(problem.prompt);
    eval_ = read_problems(options.eval, options, training_prompts, skipped_);
  }
}

Problem JsonlTask::train_problem(uint64_t seed, int64_t index) const {
  require(!train_.empty(), "no training file was given (--prompt-data)");
  const uint64_t size = train_.size();
  const auto position = static_cast<uint64_t>(index);
  uint64_t place = position % size;
  if (shuffle_) place = Permutation(size, seed, static_cast<uint32_t>(position / size))(place);
  Problem problem = train_[place];
  problem.index = index;
  return problem;
}

Problem JsonlTask::eval_problem(int64_t index) const {
  require(index >= 0 && index < num_eval_problems(), "evaluation problem {} of {} does not exist",
          index, num_eval_problems());
  return eval_[static_cast<size_t>(index)];
}

std::set<std::string> JsonlTask::reward_types() const {
  std::set<std::string> types;
  for (const auto* problems : {&train_, &eval_}) {
    for (const Problem& problem : *problems) {
      if (const auto type = own_reward(problem.metadata.get())) types.insert(*type);
    }
  }
  return types;
}

}  // namespace quads
