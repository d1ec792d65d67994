#include "eval/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "eval/majority.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "report/plain_table.h"
#include "tasks/scoring.h"

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

// The k of maj@k: those of pass@k above 1, and all samples.
std::vector<int64_t> majority_ks(const Evaluation& evaluation) {
  std::vector<int64_t> ks;
  for (const auto& [k, estimate] : evaluation.pass_at_k) {
    if (k > 1) ks.push_back(k);
  }
  if (evaluation.n_samples > 1 && std::ranges::find(ks, evaluation.n_samples) == ks.end()) {
    ks.push_back(evaluation.n_samples);
  }
  return ks;
}

// Everything that follows from the rewards.
void estimate(Evaluation& e, const EvaluationSet& set, Reward& reward,
              const std::vector<int64_t>& ks) {
  const auto n = static_cast<size_t>(e.n_samples);
  const size_t problems = set.problems.size();
  e.scored.assign(problems, 0);
  e.correct.assign(problems, 0);
  std::vector<std::vector<Vote>> votes(problems);
  std::vector<double> means;
  bool any_answer = false;
  for (size_t p = 0; p < problems; ++p) {
    double sum = 0;
    for (size_t i = p * n; i < (p + 1) * n; ++i) {
      const RewardResult& result = e.rewards[i];
      e.answers.push_back(reward.normal_answer(reward_request(set.problems[p], e.responses[i])));
      if (!result.failure.empty()) {
        if (e.failed++ == 0) e.first_failure = result.failure;
        continue;
      }
      const bool right = result.value >= 1.0;
      ++e.scored[p];
      e.correct[p] += right;
      sum += result.value;
      votes[p].push_back({e.answers.back(), right});
      any_answer |= e.answers.back().has_value();
    }
    if (e.scored[p] > 0) means.push_back(sum / static_cast<double>(e.scored[p]));
  }
  require(!means.empty(), "no response could be scored; first: {}", e.first_failure);
  e.pass_at_1 = pass_at_k(e.correct, e.scored, 1);
  e.pass_at_1_interval = pass_at_1_interval(e.correct, e.scored);
  for (int64_t k : ks) e.pass_at_k.emplace_back(k, pass_at_k(e.correct, e.scored, k));
  e.mean_at_n = over_problems(means);
  if (!any_answer) return;
  for (int64_t k : majority_ks(e)) {
    std::vector<double> values;
    for (const std::vector<Vote>& of_problem : votes) {
      if (std::ssize(of_problem) >= k) values.push_back(majority_at_k(of_problem, k));
    }
    e.maj_at_k.emplace_back(k, over_problems(values));
  }
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

Interval pass_at_1_interval(std::span<const int64_t> correct, std::span<const int64_t> scored) {
  const int64_t problems = std::ranges::count_if(scored, [](int64_t n) { return n > 0; });
  const int64_t samples = std::accumulate(scored.begin(), scored.end(), int64_t{0});
  const int64_t right = std::accumulate(correct.begin(), correct.end(), int64_t{0});
  int64_t effective = problems;
  const Estimate p = pass_at_k(correct, scored, 1);
  const double se = p.standard_error.value_or(0);
  if (samples > problems && se > 0) {
    const double kish = p.mean * (1 - p.mean) / (se * se);
    effective =
        std::clamp(static_cast<int64_t>(std::llround(std::min(kish, 1e15))), problems, samples);
  }
  const double share = static_cast<double>(right) / static_cast<double>(samples);
  return wilson_interval(std::llround(share * static_cast<double>(effective)), effective);
}

Evaluation evaluate_set(Generator& generator, const EvaluationSet& set, Reward& reward,
                        const Tokenizer& tokenizer, const std::vector<int64_t>& ks,
                        const GenerateOptions& options) {
  Evaluation result;
  result.n_samples = set.requests.front().n_samples;
  const auto start = std::chrono::steady_clock::now();
  result.samples = generator.generate(set.requests, options);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  int64_t tokens = 0, truncated = 0;
  for (size_t i = 0; i < result.samples.size(); ++i) {
    const Sample& sample = result.samples[i];
    require(sample.finish != FinishReason::kCancelled, "stopped before all samples were drawn");
    result.responses.push_back(tokenizer.decode(sample.response));
    tokens += std::ssize(sample.response);
    truncated += sample.finish == FinishReason::kLength;
  }
  const auto count = static_cast<double>(result.samples.size());
  result.rewards = score_responses(reward, set.problems, result.responses);
  estimate(result, set, reward, ks);
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
                   {"scored", evaluation->scored[p]},
                   {"correct", evaluation->correct[p]}};
      for (size_t i = p * n; i < (p + 1) * n; ++i) {
        line["responses"].push_back(evaluation->responses[i]);
        const RewardResult& reward = evaluation->rewards[i];
        const bool failed = !reward.failure.empty();
        line["rewards"].push_back(failed ? Json() : Json(reward.value));
        line["answers"].push_back(evaluation->answers[i] ? Json(*evaluation->answers[i]) : Json());
        if (evaluation->failed > 0) {
          line["failures"].push_back(failed ? Json(reward.failure) : Json());
        }
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
                  {"maj@k", Json::object()},
                  {"mean@n", estimate_json(e->mean_at_n)},
                  {"failed", e->failed},
                  {"response_length", e->response_length},
                  {"truncated", e->truncated},
                  {"seconds", e->seconds},
                  {"tokens_per_s", e->tokens_per_s}};
    entry["pass@1"]["low"] = e->pass_at_1_interval.low;
    entry["pass@1"]["high"] = e->pass_at_1_interval.high;
    for (const auto& [k, estimate] : e->pass_at_k) {
      entry["pass@k"][fmt::format("{}", k)] = estimate_json(estimate);
    }
    for (const auto& [k, estimate] : e->maj_at_k) {
      entry["maj@k"][fmt::format("{}", k)] = estimate_json(estimate);
    }
    if (e->failed > 0) entry["first_failure"] = e->first_failure;
    json["evaluations"].push_back(std::move(entry));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string evaluations_table(const std::vector<NamedEvaluation>& evaluations) {
  const Evaluation& first = *evaluations.front().evaluation;
  TableText table;
  table.header = {"precision", "pass@1", "95 % interval"};
  for (const auto& [k, estimate] : first.pass_at_k) {
    if (k > 1) table.header.push_back(fmt::format("pass@{}", k));
  }
  const bool votes = std::ranges::any_of(
      evaluations, [](const NamedEvaluation& e) { return !e.evaluation->maj_at_k.empty(); });
  const bool failures = std::ranges::any_of(
      evaluations, [](const NamedEvaluation& e) { return e.evaluation->failed > 0; });
  const std::vector<int64_t> majority = votes ? majority_ks(first) : std::vector<int64_t>();
  for (int64_t k : majority) table.header.push_back(fmt::format("maj@{}", k));
  table.header.push_back(fmt::format("mean@{}", first.n_samples));
  if (failures) table.header.push_back("not scored");
  for (const char* name : {"length", "truncated", "tokens/s"}) table.header.push_back(name);
  for (const auto& [precision, e] : evaluations) {
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {precision, estimate_text(e->pass_at_1),
           fmt::format("[{:.4f}, {:.4f}]", e->pass_at_1_interval.low, e->pass_at_1_interval.high)};
    for (const auto& [k, estimate] : e->pass_at_k) {
      if (k > 1) row.push_back(estimate_text(estimate));
    }
    for (size_t i = 0; i < majority.size(); ++i) {
      row.push_back(e->maj_at_k.empty() ? "-" : estimate_text(e->maj_at_k[i].second));
    }
    row.push_back(estimate_text(e->mean_at_n));
    if (failures) row.push_back(fmt::format("{}", e->failed));
    row.push_back(fmt::format("{:.1f}", e->response_length));
    row.push_back(fmt::format("{:.1f} %", 100 * e->truncated));
    row.push_back(fmt::format("{:.0f}", e->tokens_per_s));
  }
  std::string text = fmt::format(
      "{} problems, {} sample{} each (± standard error over problems)\n{}", first.correct.size(),
      first.n_samples, first.n_samples == 1 ? "" : "s", plain_table(table));
  for (const auto& [precision, e] : evaluations) {
    if (e->failed > 0) {
      text +=
          fmt::format("{}: {} of {} responses could not be scored and are left out; first: {}\n",
                      precision, e->failed, e->samples.size(), e->first_failure);
    }
  }
  return text;
}

}  // namespace quads
