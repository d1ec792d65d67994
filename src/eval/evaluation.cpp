#include "eval/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "report/plain_table.h"

namespace quads {
namespace {

Json estimate_json(const Estimate& estimate) {
  Json json = {{"mean", estimate.mean}, {"standard_error", nullptr}};
  if (estimate.standard_error) json["standard_error"] = *estimate.standard_error;
  return json;
}

std::string estimate_text(const Estimate& estimate) {
  return estimate.standard_error
             ? fmt::format("{:.4f} ± {:.4f}", estimate.mean, *estimate.standard_error)
             : fmt::format("{:.4f}", estimate.mean);
}

}  // namespace

EvaluationSet evaluation_set(const Task& task, const Tokenizer& tokenizer, int64_t count,
                             int32_t n_samples) {
  const int64_t available = task.num_eval_problems();
  require(available > 0, "the task has no evaluation problems");
  const int64_t wanted = count > 0 ? std::min(count, available) : available;
  EvaluationSet set;
  for (int64_t i = 0; i < wanted; ++i) {
    set.problems.push_back(task.eval_problem(i));
    set.requests.push_back({.prompt_index = i,
                            .prompt = tokenizer.encode(set.problems.back().prompt),
                            .n_samples = n_samples});
  }
  return set;
}

Interval pass_at_1_interval(std::span<const int64_t> correct, int64_t n_samples) {
  const int64_t problems = std::ssize(correct), samples = problems * n_samples;
  const int64_t right = std::accumulate(correct.begin(), correct.end(), int64_t{0});
  int64_t effective = n_samples == 1 ? samples : problems;
  const Estimate p = pass_at_k(correct, n_samples, 1);
  const double se = p.standard_error.value_or(0);
  if (n_samples > 1 && se > 0) {
    const double kish = p.mean * (1 - p.mean) / (se * se);
    effective =
        std::clamp(static_cast<int64_t>(std::llround(std::min(kish, 1e15))), problems, samples);
  }
  const double share = static_cast<double>(right) / static_cast<double>(samples);
  return wilson_interval(std::llround(share * static_cast<double>(effective)), effective);
}

Evaluation evaluate_set(Generator& generator, const EvaluationSet& set, const Task& task,
                        const Tokenizer& tokenizer, const std::vector<int64_t>& ks,
                        const GenerateOptions& options) {
  Evaluation result;
  result.n_samples = set.requests.front().n_samples;
  const auto start = std::chrono::steady_clock::now();
  result.samples = generator.generate(set.requests, options);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.correct.assign(set.problems.size(), 0);
  int64_t tokens = 0, truncated = 0;
  for (size_t i = 0; i < result.samples.size(); ++i) {
    const Sample& sample = result.samples[i];
    require(sample.finish != FinishReason::kCancelled, "stopped before all samples were drawn");
    const size_t problem = i / static_cast<size_t>(result.n_samples);
    result.responses.push_back(tokenizer.decode(sample.response));
    const double reward = task.reward(set.problems[problem], result.responses.back());
    result.rewards.push_back(static_cast<float>(reward));
    result.correct[problem] += reward >= 1.0;
    tokens += std::ssize(sample.response);
    truncated += sample.finish == FinishReason::kLength;
  }
  const auto count = static_cast<double>(result.samples.size());
  result.pass_at_1 = pass_at_k(result.correct, result.n_samples, 1);
  result.pass_at_1_interval = pass_at_1_interval(result.correct, result.n_samples);
  for (int64_t k : ks) {
    result.pass_at_k.emplace_back(k, pass_at_k(result.correct, result.n_samples, k));
  }
  result.mean_at_n = mean_at_k(result.rewards, result.n_samples);
  result.response_length = static_cast<double>(tokens) / count;
  result.truncated = static_cast<double>(truncated) / count;
  result.tokens_per_s = static_cast<double>(tokens) / result.seconds;
  return result;
}

void write_by_problem(const std::string& path, const EvaluationSet& set,
                      const std::vector<NamedEvaluation>& evaluations) {
  AtomicFile file(path);
  for (const auto& [precision, evaluation] : evaluations) {
    const auto n = static_cast<size_t>(evaluation->n_samples);
    for (size_t p = 0; p < set.problems.size(); ++p) {
      Json line = {{"precision", precision},
                   {"index", set.problems[p].index},
                   {"prompt", set.problems[p].prompt},
                   {"label", set.problems[p].label},
                   {"n", n},
                   {"correct", evaluation->correct[p]}};
      for (size_t i = p * n; i < (p + 1) * n; ++i) {
        line["responses"].push_back(evaluation->responses[i]);
        line["rewards"].push_back(evaluation->rewards[i]);
        line["finish_reasons"].push_back(finish_reason_name(evaluation->samples[i].finish));
      }
      file.write(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    }
  }
  file.commit();
}

std::string evaluations_json(const std::vector<NamedEvaluation>& evaluations) {
  const Evaluation& first = *evaluations.front().evaluation;
  Json json = {{"problems", first.correct.size()}, {"n_samples_per_prompt", first.n_samples}};
  for (const auto& [precision, e] : evaluations) {
    Json entry = {{"precision", precision},
                  {"pass@1", estimate_json(e->pass_at_1)},
                  {"pass@k", Json::object()},
                  {"mean@n", estimate_json(e->mean_at_n)},
                  {"response_length", e->response_length},
                  {"truncated", e->truncated},
                  {"seconds", e->seconds},
                  {"tokens_per_s", e->tokens_per_s}};
    entry["pass@1"]["low"] = e->pass_at_1_interval.low;
    entry["pass@1"]["high"] = e->pass_at_1_interval.high;
    for (const auto& [k, estimate] : e->pass_at_k) {
      entry["pass@k"][fmt::format("{}", k)] = estimate_json(estimate);
    }
    json["evaluations"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

std::string evaluations_table(const std::vector<NamedEvaluation>& evaluations) {
  const Evaluation& first = *evaluations.front().evaluation;
  TableText table;
  table.header = {"precision", "pass@1", "95 % interval"};
  for (const auto& [k, estimate] : first.pass_at_k) {
    if (k > 1) table.header.push_back(fmt::format("pass@{}", k));
  }
  table.header.push_back(fmt::format("mean@{}", first.n_samples));
  for (const char* name : {"length", "truncated", "tokens/s"}) table.header.push_back(name);
  for (const auto& [precision, e] : evaluations) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {precision, estimate_text(e->pass_at_1),
           fmt::format("[{:.4f}, {:.4f}]", e->pass_at_1_interval.low, e->pass_at_1_interval.high)};
    for (const auto& [k, estimate] : e->pass_at_k) {
      if (k > 1) row.push_back(estimate_text(estimate));
    }
    row.push_back(estimate_text(e->mean_at_n));
    row.push_back(fmt::format("{:.1f}", e->response_length));
    row.push_back(fmt::format("{:.1f} %", 100 * e->truncated));
    row.push_back(fmt::format("{:.0f}", e->tokens_per_s));
  }
  return fmt::format("{} problems, {} sample{} each (± standard error over problems)\n{}",
                     first.correct.size(), first.n_samples, first.n_samples == 1 ? "" : "s",
                     plain_table(table));
}

}  // namespace quads
