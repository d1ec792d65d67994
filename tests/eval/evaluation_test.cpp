// What an evaluation reports, on samples whose rewards are known.
#include "eval/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "base/error.h"
#include "io/json.h"

namespace quads {
namespace {

// Ten problems; the answer to problem i is digit i.
class DigitTask : public Task {
 public:
  Problem train_problem(uint64_t, int64_t index) const override { return eval_problem(index % 10); }
  int64_t num_eval_problems() const override { return 10; }
  Problem eval_problem(int64_t index) const override {
    return {index, "=", std::string(1, static_cast<char>('0' + index))};
  }
};

// Sample s of problem i says i if s < i % (n + 1), else "=".
class ScriptedGenerator : public Generator {
 public:
  std::vector<Sample> generate(std::span<const Request> requests,
                               const GenerateOptions& options) override {
    std::vector<Sample> samples;
    for (const Request& r : requests) {
      for (int32_t s = 0; s < r.n_samples; ++s) {
        Sample& sample = samples.emplace_back();
        sample.prompt_index = r.prompt_index;
        sample.sample_index = s;
        const bool right = s < r.prompt_index % (r.n_samples + 1);
        sample.response = {right ? static_cast<int32_t>(r.prompt_index) : 10};
        const bool cancelled = options.cancel && options.cancel->load();
        sample.finish = cancelled ? FinishReason::kCancelled : FinishReason::kStop;
      }
    }
    return samples;
  }
  std::vector<std::vector<float>> score(std::span<const Sample>, float) override { return {}; }
};

CharacterTokenizer digits() {
  CharacterVocabulary vocabulary;
  for (const char c : std::string_view("0123456789=")) vocabulary.tokens.emplace_back(1, c);
  return CharacterTokenizer(vocabulary);
}

std::vector<int64_t> counts(size_t problems, int64_t n) {
  return std::vector<int64_t>(problems, n);
}

TEST(Evaluation, EstimatesAreThoseOfTheRewards) {
  const DigitTask task;
  const CharacterTokenizer tokenizer = digits();
  ScriptedGenerator generator;
  const auto reward = make_reward({});
  const EvaluationSet set = evaluation_set(task, tokenizer, 0, 4);
  const Evaluation e = evaluate_set(generator, set, *reward, tokenizer, {1, 4}, {});
  // i % 5 of 4 samples are right: 0 1 2 3 4 0 1 2 3 4.
  EXPECT_EQ(e.correct, (std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  EXPECT_DOUBLE_EQ(e.pass_at_1.mean, .5);
  ASSERT_EQ(e.pass_at_k.size(), 2);
  EXPECT_DOUBLE_EQ(e.pass_at_k[0].second.mean, .5);
  EXPECT_DOUBLE_EQ(e.pass_at_k[1].second.mean, .8);
  EXPECT_DOUBLE_EQ(e.mean_at_n.mean, .5);
  EXPECT_EQ(e.response_length, 1);
  EXPECT_EQ(e.truncated, 0);
  EXPECT_LT(e.pass_at_1_interval.low, .5);
  EXPECT_GT(e.pass_at_1_interval.high, .5);
}

// Scores as `exact` does, but cannot score what `fails` says of (problem, sample's number).
class Failing : public Reward {
 public:
  explicit Failing(std::function<bool(std::string_view label, size_t sample)> fails)
      : fails_(std::move(fails)) {}
  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override {
    std::vector<RewardResult> results = exact_->score(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (fails_(requests[i].label, i % 4)) results[i].failure = fmt::format("worker {} died", i);
    }
    return results;
  }
  std::optional<std::string> normal_answer(const RewardRequest& request) override {
    return exact_->normal_answer(request);
  }

 private:
  std::unique_ptr<Reward> exact_ = make_reward({});
  std::function<bool(std::string_view, size_t)> fails_;
};

TEST(Evaluation, ResponsesThatCannotBeScoredAreLeftOutAndCounted) {
  const DigitTask task;
  const CharacterTokenizer tokenizer = digits();
  ScriptedGenerator generator;
  // All of problem 0, and the first, right, sample of problem 1.
  Failing reward([](std::string_view label, size_t sample) {
    return label == "0" || (label == "1" && sample == 0);
  });
  const EvaluationSet set = evaluation_set(task, tokenizer, 3, 4);
  const Evaluation e = evaluate_set(generator, set, reward, tokenizer, {1, 2, 4}, {});
  EXPECT_EQ(e.failed, 5);
  EXPECT_EQ(e.first_failure, "worker 0 died");
  EXPECT_EQ(e.scored, (std::vector<int64_t>{0, 3, 4}));
  EXPECT_EQ(e.correct, (std::vector<int64_t>{0, 0, 2}));
  EXPECT_DOUBLE_EQ(e.pass_at_1.mean, .25);  // over problems 1 and 2
  EXPECT_DOUBLE_EQ(e.pass_at_k[1].second.mean, (0 + 5.0 / 6.0) / 2);
  EXPECT_DOUBLE_EQ(e.pass_at_k[2].second.mean, 1.0);  // only problem 2 has four
  EXPECT_FALSE(e.pass_at_k[2].second.standard_error.has_value());
  EXPECT_DOUBLE_EQ(e.mean_at_n.mean, .25);

  const std::vector<NamedEvaluation> named = {{"bf16", &e}};
  const Json json = parse_json(evaluations_json(named), "json");
  EXPECT_EQ(json["evaluations"][0]["failed"], 5);
  EXPECT_EQ(json["evaluations"][0]["first_failure"], "worker 0 died");
  EXPECT_THAT(evaluations_table(named),
              testing::HasSubstr("5 of 12 responses could not be scored and are left out"));
  const std::string path = testing::TempDir() + "/failed.jsonl";
  write_by_problem(path, set, named);
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::getline(file, line);
  const Json object = parse_json(line, "line");
  EXPECT_EQ(object["rewards"], (Json{nullptr, 0.0, 0.0, 0.0}));
  EXPECT_EQ(object["failures"], (Json{"worker 4 died", nullptr, nullptr, nullptr}));
  EXPECT_EQ(object["scored"], 3);
}

TEST(Evaluation, NothingScoredIsAnErrorWithTheFirstCause) {
  const DigitTask task;
  const CharacterTokenizer tokenizer = digits();
  ScriptedGenerator generator;
  Failing reward([](std::string_view, size_t) { return true; });
  const EvaluationSet set = evaluation_set(task, tokenizer, 3, 4);
  try {
    evaluate_set(generator, set, reward, tokenizer, {1}, {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no response could be scored; first: worker 0 died");
  }
}

TEST(Evaluation, MajorityVotesAreCountedForEveryKAndForAllSamples) {
  const DigitTask task;
  const CharacterTokenizer tokenizer = digits();
  ScriptedGenerator generator;
  const auto reward = make_reward({});
  const EvaluationSet set = evaluation_set(task, tokenizer, 5, 4);
  const Evaluation e = evaluate_set(generator, set, *reward, tokenizer, {1, 2}, {});
  // Problem i has its first i samples right, the others say "=".
  ASSERT_EQ(e.maj_at_k.size(), 2U);
  EXPECT_EQ(e.maj_at_k[0].first, 2);
  EXPECT_DOUBLE_EQ(e.maj_at_k[0].second.mean, (0 + .25 + .5 + .75 + 1) / 5);
  EXPECT_EQ(e.maj_at_k[1].first, 4);
  EXPECT_DOUBLE_EQ(e.maj_at_k[1].second.mean, (0 + 0 + .5 + 1 + 1) / 5);
  EXPECT_THAT(evaluations_table({{"bf16", &e}}), testing::HasSubstr("maj@4"));
  EXPECT_EQ(
      parse_json(evaluations_json({{"bf16", &e}}), "j")["evaluations"][0]["maj@k"]["4"]["mean"],
      .5);
  const EvaluationSet one = evaluation_set(task, tokenizer, 5, 1);
  EXPECT_TRUE(evaluate_set(generator, one, *reward, tokenizer, {1}, {}).maj_at_k.empty());
}

TEST(Evaluation, CancelledSamplesAreAnErrorAndNotAResult) {
  const DigitTask task;
  const CharacterTokenizer tokenizer = digits();
  ScriptedGenerator generator;
  const auto reward = make_reward({});
  const EvaluationSet set = evaluation_set(task, tokenizer, 2, 1);
  const std::atomic<bool> cancel{true};
  GenerateOptions options;
  options.cancel = &cancel;
  EXPECT_THROW(evaluate_set(generator, set, *reward, tokenizer, {1}, options), Error);
}

TEST(Evaluation, AsksForNoMoreProblemsThanThereAre) {
  const DigitTask task;
  const CharacterTokenizer tokenizer = digits();
  EXPECT_EQ(evaluation_set(task, tokenizer, 3, 1).problems.size(), 3);
  EXPECT_EQ(evaluation_set(task, tokenizer, 1000, 1).problems.size(), 10);
}

TEST(PassAt1Interval, OneSampleAProblemIsWilsonsOwn) {
  const std::vector<int64_t> correct = {1, 0, 1, 1, 0, 0, 0, 1};
  const Interval interval = pass_at_1_interval(correct, counts(correct.size(), 1)),
                 wilson = wilson_interval(4, 8);
  EXPECT_EQ(interval.low, wilson.low);
  EXPECT_EQ(interval.high, wilson.high);
}

TEST(PassAt1Interval, SamplesThatAgreeWithinAProblemCountOnce) {
  // Four samples a problem that are all right or all wrong know no more than one each.
  const std::vector<int64_t> correct = {4, 0, 4, 4, 0, 0, 0, 4};
  const Interval interval = pass_at_1_interval(correct, counts(correct.size(), 4)),
                 one = wilson_interval(4, 8);
  EXPECT_NEAR(interval.low, one.low, 1e-12);
  EXPECT_NEAR(interval.high, one.high, 1e-12);
}

TEST(PassAt1Interval, SamplesThatDifferWithinProblemsNarrowIt) {
  const std::vector<int64_t> correct = {2, 1, 2, 3, 2, 2, 1, 3};
  const Interval interval = pass_at_1_interval(correct, counts(correct.size(), 4)),
                 one = wilson_interval(4, 8);
  EXPECT_GT(interval.low, one.low);
  EXPECT_LT(interval.high, one.high);
}

TEST(PassAt1Interval, NoneRightIsAsWideAsTheProblemsAllow) {
  const std::vector<int64_t> none = {0, 0, 0};
  EXPECT_EQ(pass_at_1_interval(none, counts(none.size(), 100)).high, wilson_interval(0, 3).high);
}

TEST(EvaluationFiles, JsonAndTableAndLinesHoldEveryPrecision) {
  const DigitTask task;
  const CharacterTokenizer tokenizer = digits();
  ScriptedGenerator generator;
  const auto reward = make_reward({});
  const EvaluationSet set = evaluation_set(task, tokenizer, 4, 2);
  const Evaluation e = evaluate_set(generator, set, *reward, tokenizer, {1, 2}, {});
  const std::vector<NamedEvaluation> named = {{"bf16", &e}, {"nvfp4", &e}};
  const Json json = parse_json(evaluations_json(named), "json");
  EXPECT_EQ(json["evaluations"][1]["precision"], "nvfp4");
  EXPECT_EQ(json["evaluations"][0]["pass@k"]["2"]["mean"], e.pass_at_k[1].second.mean);
  EXPECT_THAT(evaluations_table(named), testing::HasSubstr("pass@2"));

  const std::string path = testing::TempDir() + "/by_problem.jsonl";
  write_by_problem(path, set, named);
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const Json object = parse_json(line, "line");
    EXPECT_EQ(object["responses"].size(), 2);
    EXPECT_EQ(object["correct"], e.correct[static_cast<size_t>(lines % 4)]);
  }
  EXPECT_EQ(lines, 8);
}

}  // namespace
}  // namespace quads
