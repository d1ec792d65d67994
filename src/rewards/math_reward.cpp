#include "rewards/math_reward.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "rewards/math_answer.h"
#include "rewards/math_compare.h"
#include "rewards/math_verify_worker.h"

namespace quads {
namespace {

constexpr std::string_view kRemedy = "--rm-python names a Python with math-verify 0.9.0";

std::string question_json(std::string_view label, std::string_view answer) {
  return Json{{"label", label}, {"answer", answer}}.dump(-1, ' ', false,
                                                         Json::error_handler_t::replace);
}

// What the checker said, or nothing if that is no answer to a question.
std::optional<RewardResult> result_of(const WorkerReply& reply) {
  if (reply.outcome != WorkerReply::Outcome::kAnswered) return std::nullopt;
  const Json json = Json::parse(reply.line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  if (const auto equal = json.find("equal"); equal != json.end() && equal->is_boolean()) {
    return RewardResult{.value = equal->get<bool>() ? 1.0 : 0.0};
  }
  if (const auto error = json.find("error"); error != json.end() && error->is_string()) {
    return RewardResult{.failure = error->get<std::string>()};
  }
  return std::nullopt;
}

std::string what_happened(const WorkerReply& reply) {
  return reply.outcome == WorkerReply::Outcome::kAnswered
             ? "it answered " + reply.line.substr(0, 200)
             : reply.failure;
}

}  // namespace

MathReward::MathReward(WorkerPoolOptions checker) : pool_(std::move(checker)) {
  const std::string questions[] = {question_json("2", "1+1"), question_json("3", "1+1")};
  const std::vector<WorkerReply> replies = pool_.run(questions);
  for (size_t i = 0; i < replies.size(); ++i) {
    const auto result = result_of(replies[i]);
    require(result && result->failure.empty() && result->value == (i == 0 ? 1 : 0),
            "math: the checker does not work: asked {}, {}; {}", questions[i],
            what_happened(replies[i]), kRemedy);
  }
}

std::vector<RewardResult> MathReward::check(std::span<const Question> questions) {
  std::vector<RewardResult> results(questions.size());
  std::vector<WorkerReply> replies(questions.size());
  // Asks about the questions of these indices and returns those that got no verdict.
  const auto ask = [&](const std::vector<size_t>& indices, const auto& json) {
    std::vector<std::string> requests;
    requests.reserve(indices.size());
    for (const size_t i : indices) requests.push_back(json(questions[i]));
    const std::vector<WorkerReply> round = pool_.run(requests);
    std::vector<size_t> open;
    for (size_t k = 0; k < indices.size(); ++k) {
      const auto result = result_of(round[k]);
      results[indices[k]] = result.value_or(RewardResult{});
      replies[indices[k]] = round[k];
      if (!result) open.push_back(indices[k]);
    }
    return open;
  };
  const auto whole = [](const Question& q) { return question_json(q.label, q.answer); };
  const auto label_only = [](const Question& q) { return question_json(q.label, "0"); };

  std::vector<size_t> all(questions.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<size_t> at_fault;  // so far: the answer
  std::vector<size_t> broken;
  for (const size_t i : ask(all, whole)) {
    const bool timed_out = replies[i].outcome == WorkerReply::Outcome::kTimedOut;
    (timed_out ? at_fault : broken).push_back(i);
  }
  // A worker ended: by chance, if another one can answer.
  if (!broken.empty()) {
    const std::vector<size_t> again = ask(broken, whole);
    at_fault.insert(at_fault.end(), again.begin(), again.end());
  }
  if (at_fault.empty()) return results;
  // If the pool gets through the label with another answer, it is this answer that it could not get
  // through: 0, as nobody may leave a group by hanging or ending the checker. Else nobody can say.
  const std::vector<size_t> unknown = ask(at_fault, label_only);
  for (const size_t i : at_fault) results[i].value = 0;
  for (const size_t i : unknown) {
    results[i].failure = fmt::format("math: the checker cannot read the label '{}': {}",
                                     questions[i].label.substr(0, 100), what_happened(replies[i]));
  }
  return results;
}

std::vector<RewardResult> MathReward::score(std::span<const RewardRequest> requests) {
  std::vector<RewardResult> results(requests.size());
  std::map<Question, std::vector<size_t>> undecided;  // its requests
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto label = label_answer(requests[i].label);
    if (!label) {
      results[i].failure =
          fmt::format("math: the label '{}' has no answer", requests[i].label.substr(0, 100));
      continue;
    }
    const auto answer = response_answer(requests[i].response);
    if (!answer) continue;
    switch (compare_math_answers(*label, *answer)) {
      case MathVerdict::kEqual:
        results[i].value = 1;
        break;
      case MathVerdict::kDifferent:
        break;
      case MathVerdict::kUndecided:
        undecided[{tidy_answer(*label), tidy_answer(*answer)}].push_back(i);
        break;
    }
  }
  if (undecided.empty()) return results;

  std::vector<Question> questions;
  questions.reserve(undecided.size());
  for (const auto& [question, indices] : undecided) questions.push_back(question);
  std::vector<RewardResult> checked(questions.size());
  try {
    checked = check(questions);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    std::fill(checked.begin(), checked.end(), RewardResult{.failure = error.what()});
  }
  size_t next = 0;
  for (const auto& [question, indices] : undecided) {
    for (const size_t index : indices) results[index] = checked[next];
    ++next;
  }
  return results;
}

std::optional<std::string> MathReward::normal_answer(const RewardRequest& request) {
  const auto answer = response_answer(request.response);
  return answer ? std::optional(normal_answer_text(*answer)) : std::nullopt;
}

std::unique_ptr<Reward> make_math_reward(const RewardOptions& options) {
  // A third of the time for each step of the worker, which then answers before it is killed.
  const int step_s = std::max(1, static_cast<int>(options.timeout_s / 3));
  return std::make_unique<MathReward>(WorkerPoolOptions{
      // The order of Python's sets must not depend on the run.
      .command = {"env", "PYTHONHASHSEED=0", options.python, "-c", std::string(kMathVerifyWorker),
                  std::to_string(step_s)},
      .name = fmt::format("{} (math-verify)", options.python),
      .remedy = std::string(kRemedy),
      .workers = options.num_workers(),
      .request_s = options.timeout_s,
      .cancel = options.cancel,
  });
}

}  // namespace quads
