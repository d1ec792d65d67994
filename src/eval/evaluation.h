// Evaluation of a model on a task: n samples a problem, and what is estimated from them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "eval/generator.h"
#include "rewards/reward.h"
#include "rl/estimators.h"
#include "tasks/task.h"
#include "tokenizer/tokenizer.h"

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
  std::vector<RewardResult> rewards;
  std::vector<std::optional<std::string>> answers;  // in the reward's normal form
  std::vector<int64_t> scored;                      // [problems], samples that have a reward
  std::vector<int64_t> correct;                     // [problems], samples with reward >= 1
  int64_t failed = 0;         // samples without a reward; no figure below counts them
  std::string first_failure;  // the cause of the first one

  Estimate pass_at_1;
  Interval pass_at_1_interval;  // 95 %
  // Over the problems with at least k scored samples; NaN if there is none.
  std::vector<std::pair<int64_t, Estimate>> pass_at_k;
  std::vector<std::pair<int64_t, Estimate>> maj_at_k;  // empty if the reward finds no answers
  Estimate mean_at_n;                                  // reward
  double response_length = 0;
  double truncated = 0;  // share of samples that reached the limit
  double seconds = 0;
  double tokens_per_s = 0;
};

/// Samples and scores. `ks` in [1, n_samples], of pass@k; maj@k is of those above 1, and of
/// n_samples. Error if it was cancelled, or if no response could be scored.
Evaluation evaluate_set(Generator& generator, const EvaluationSet& set, Reward& reward,
                        const Tokenizer& tokenizer, const std::vector<int64_t>& ks,
                        const GenerateOptions& options);

/// Wilson's interval of pass@1 from scored[i] samples of problem i (not all 0), which are not
/// independent: as if there were p (1 - p) / s.e.^2 independent samples (Kish's effective sample
/// size), no fewer than problems and no more than samples. With one sample a problem it is Wilson's
/// own.
Interval pass_at_1_interval(std::span<const int64_t> correct, std::span<const int64_t> scored);

/// One JSON object a problem, a line each: index, prompt, label, n, scored, correct, responses,
/// rewards (null for none), answers (null for none), finish_reasons, and failures (the cause of
/// each missing reward, else null) if there are any. Written whole or not at all.
struct NamedEvaluation {
  std::string precision;
  const Evaluation* evaluation;
};
void write_by_problem(const std::string& path, const EvaluationSet& set,
                      const std::vector<NamedEvaluation>& evaluations);
/// {"problems", "n_samples_per_prompt", "evaluations": [{"precision", "pass@1": {"mean",
/// "standard_error", "low", "high"}, "pass@k": {"<k>": {...}}, "maj@k": {...}, "mean@n": {...},
/// "failed", "first_failure", ...}]}, indented.
std::string evaluations_json(const std::vector<NamedEvaluation>& evaluations);
/// The same figures for a terminal, a row a precision.
std::string evaluations_table(const std::vector<NamedEvaluation>& evaluations);

}  // namespace quads
