// Evaluation of a model on a task: n samples a problem, and what is estimated from them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "eval/generator.h"
#include "tokenizer/tokenizer.h"
#include "rl/estimators.h"
#include "tasks/task.h"

namespace quads {

/// The first `count` evaluation problems (0: all) and a request of n samples for each; a problem's
/// index is its prompt index. Error if the task has none.
struct EvaluationSet {
  std::vector<Problem> problems;
  std::vector<Request> requests;
};
EvaluationSet evaluation_set(const Task& task, const Tokenizer& tokenizer, int64_t count,
                             int32_t n_samples);

struct Evaluation {
  int64_t n_samples = 0;
  std::vector<Sample> samples;  // [problems * n_samples], a problem's side by side
  std::vector<std::string> responses;
  std::vector<float> rewards;
  std::vector<int64_t> correct;  // [problems], samples with reward >= 1

  Estimate pass_at_1;
  Interval pass_at_1_interval;  // 95 %
  std::vector<std::pair<int64_t, Estimate>> pass_at_k;
  Estimate mean_at_n;  // reward
  double response_length = 0;
  double truncated = 0;  // share of samples that reached the limit
  double seconds = 0;
  double tokens_per_s = 0;
};

/// Samples and scores. `ks` in [1, n_samples]. Error if it was cancelled.
Evaluation evaluate_set(Generator& generator, const EvaluationSet& set, const Task& task,
                        const Tokenizer& tokenizer, const std::vector<int64_t>& ks,
                        const GenerateOptions& options);

/// Wilson's interval of pass@1 from several samples a problem, which are not independent: as if
/// there were p (1 - p) / s.e.^2 independent samples (Kish's effective sample size), no fewer than
/// problems and no more than samples. With one sample a problem it is Wilson's own.
Interval pass_at_1_interval(std::span<const int64_t> correct, int64_t n_samples);

/// One JSON object a problem, a line each: index, prompt, label, correct, n, responses, rewards,
/// finish_reasons. Written whole or not at all.
struct NamedEvaluation {
  std::string precision;
  const Evaluation* evaluation;
};
void write_by_problem(const std::string& path, const EvaluationSet& set,
                      const std::vector<NamedEvaluation>& evaluations);
/// {"problems", "n_samples_per_prompt", "evaluations": [{"precision", "pass@1": {"mean",
/// "standard_error", "low", "high"}, "pass@k": {"<k>": {...}}, "mean@n": {...}, ...}]}, indented.
std::string evaluations_json(const std::vector<NamedEvaluation>& evaluations);
/// The same figures for a terminal, a row a precision.
std::string evaluations_table(const std::vector<NamedEvaluation>& evaluations);

}  // namespace quads
