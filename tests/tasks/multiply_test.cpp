// The multiplication task: solutions, rewards, noise and the held-out problems.
#include "tasks/multiply.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "base/error.h"
#include "tokenizer/character_tokenizer.h"

namespace quads {
namespace {

Problem problem(const std::string& prompt, const std::string& label, int64_t index = 0) {
  return {index, prompt, label};
}

double reward_of(const Problem& problem, std::string_view response) {
  const RewardRequest request{
      .prompt = problem.prompt, .response = response, .label = problem.label};
  return MultiplyReward().score({&request, 1}).front().value;
}

std::pair<uint64_t, uint64_t> factors(const Problem& problem) {
  const size_t times = problem.prompt.find('*');
  return {std::stoull(problem.prompt.substr(0, times)),
          std::stoull(problem.prompt.substr(times + 1))};
}

TEST(Multiply, SolutionWritesThePartialProductsOut) {
  const MultiplyTask task({});
  EXPECT_EQ(task.solution(problem("37*84=", "3108"), 1), "37*4+37*80=148+2960=3108$");
  EXPECT_EQ(task.solution(problem("37*80=", "2960"), 1), "37*0+37*80=0+2960=2960$");
  EXPECT_EQ(task.solution(problem("37*284=", "10508"), 1),
            "37*4+37*80+37*200=148+2960+7400=10508$");
  EXPECT_EQ(task.solution(problem("37*4=", "148"), 1), "148$");
  EXPECT_EQ(task.solution(problem("137*84=", "11508"), 1), "137*4+137*80=548+10960=11508$");
}

TEST(Multiply, SolutionOfAnotherTasksPromptIsAnError) {
  const MultiplyTask task({});
  for (const std::string prompt : {"", "37*84", "37+84=", "*84=", "37*=", "3x*84=", "37*84=="}) {
    EXPECT_THROW(task.solution(problem(prompt, ""), 1), Error) << prompt;
  }
}

TEST(Multiply, RewardIsForTheExactFinalAnswer) {
  const MultiplyTask task({});
  const Problem p = problem("37*84=", "3108");
  for (const char* right : {"3108$", "37*4+37*80=148+2960=3108$", "=3108$", "wrong=3108$"}) {
    EXPECT_EQ(reward_of(p, right), 1.0) << right;
  }
  for (const char* wrong :
       {"", "$", "3108", "=3108", "3109$", "03108$", "3108=$", "3108$=", "$3108$", "3108$$",
        " 3108$", "3108 $", "148+2960$", "=3108=310$", "3108$ "}) {
    EXPECT_EQ(reward_of(p, wrong), 0.0) << wrong;
  }
}

TEST(Multiply, SolutionsWithoutNoiseAreRewarded) {
  for (const auto& [first, second] : {std::pair{2, 2}, {3, 2}, {2, 1}, {1, 3}, {6, 6}}) {
    const MultiplyTask task({.first_digits = first, .second_digits = second});
    for (int64_t i = 0; i < 50; ++i) {
      const Problem p = task.train_problem(5, i);
      EXPECT_EQ(p.prompt.size(), static_cast<size_t>(first + second + 2));
      EXPECT_EQ(reward_of(p, *task.solution(p, 5)), 1.0) << p.prompt;
    }
  }
}

TEST(Multiply, NoiseLeavesTheExpectedShareRight) {
  for (const auto& [digits, expected] : {std::pair{2, 0.512}, {3, 0.4096}, {1, 0.8}}) {
    const MultiplyTask task({.second_digits = digits, .noise = 0.2});
    constexpr int kProblems = 10'000;
    int right = 0;
    for (int64_t i = 0; i < kProblems; ++i) {
      const Problem p = task.train_problem(1, i);
      right += reward_of(p, *task.solution(p, 1)) == 1.0 ? 1 : 0;
    }
    // Errors that cancel add a little: e.g. +10 and -10.
    EXPECT_NEAR(static_cast<double>(right) / kProblems, expected, 0.025) << digits;
  }
}

TEST(Multiply, NoiseIsOffByAPowerOfTenAndTheSumFollowsWhatIsWritten) {
  const MultiplyTask task({.noise = 1.0});
  const auto off_by_power = [](int64_t value, int64_t truth) {
    int64_t difference = std::abs(value - truth);
    while (difference > 0 && difference % 10 == 0) {
      difference /= 10;
    }
    return difference == 1;
  };
  bool upwards = false;
  bool downwards = false;
  for (int64_t i = 0; i < 300; ++i) {
    const std::string text = *task.solution(problem("37*84=", "3108", i), 1);
    int64_t first = 0;
    int64_t second = 0;
    int64_t sum = 0;
    ASSERT_EQ(std::sscanf(text.c_str(), "37*4+37*80=%ld+%ld=%ld$", &first, &second, &sum), 3)
        << text;
    EXPECT_TRUE(off_by_power(first, 148)) << text;
    EXPECT_TRUE(off_by_power(second, 2960)) << text;
    EXPECT_TRUE(off_by_power(sum, first + second)) << text;
    upwards |= first > 148;
    downwards |= first < 148;
  }
  EXPECT_TRUE(upwards && downwards);
  // From 0 there is only one way.
  const std::string from_zero = *task.solution(problem("37*80=", "2960"), 1);
  EXPECT_TRUE(from_zero.starts_with("37*0+37*80=1+")) << from_zero;
}

TEST(Multiply, NoiseIsAFunctionOfSeedAndIndex) {
  const MultiplyTask task({.noise = 0.5});
  std::set<std::string> solutions;
  for (int64_t i = 0; i < 20; ++i) {
    const Problem p = problem("37*84=", "3108", i);
    EXPECT_EQ(task.solution(p, 1), task.solution(p, 1));
    solutions.insert(*task.solution(p, 1));
  }
  EXPECT_GT(solutions.size(), 5U);
}

TEST(Multiply, TrainingNeverDrawsAHeldOutPairInEitherOrder) {
  const MultiplyTask task({});
  std::set<std::pair<uint64_t, uint64_t>> held_out;
  for (int64_t i = 0; i < task.num_eval_problems(); ++i) {
    const auto [a, b] = factors(task.eval_problem(i));
    held_out.insert({a, b});
    held_out.insert({b, a});
  }
  EXPECT_EQ(held_out.size(), static_cast<size_t>(task.num_eval_problems()));
  std::set<std::pair<uint64_t, uint64_t>> trained;
  for (int64_t i = 0; i < 60'000; ++i) {
    trained.insert(factors(task.train_problem(3, i)));
  }
  for (const auto& pair : trained) {
    EXPECT_FALSE(held_out.contains(pair)) << pair.first << "*" << pair.second;
  }
  EXPECT_EQ(trained.size() + held_out.size(), 8100U);  // all pairs are one or the other
}

TEST(Multiply, AboutAQuarterIsHeldOutForEverySize) {
  EXPECT_NEAR(MultiplyTask({}).num_eval_problems(), 2025, 200);
  EXPECT_EQ(MultiplyTask({.first_digits = 6, .second_digits = 6}).num_eval_problems(), 16'384);
  const MultiplyTask smallest({.first_digits = 1, .second_digits = 1});
  EXPECT_GT(smallest.num_eval_problems(), 0);
  EXPECT_LT(smallest.num_eval_problems(), 60);
  EXPECT_EQ(smallest.train_problem(1, 0).prompt.size(), 4U);
}

TEST(Multiply, EvaluationIsFixedShuffledAndWithoutRepetition) {
  const MultiplyTask task({});
  const MultiplyTask again({.noise = 0.3});
  std::set<std::string> prompts;
  for (int64_t i = 0; i < task.num_eval_problems(); ++i) {
    const Problem p = task.eval_problem(i);
    EXPECT_EQ(p.index, i);
    EXPECT_EQ(p.prompt, again.eval_problem(i).prompt);
    const auto [a, b] = factors(p);
    EXPECT_EQ(p.label, std::to_string(a * b));
    EXPECT_TRUE(prompts.insert(p.prompt).second);
  }
  EXPECT_NE(task.eval_problem(0).prompt, *prompts.begin());
  EXPECT_THROW(task.eval_problem(task.num_eval_problems()), Error);
  EXPECT_THROW(task.eval_problem(-1), Error);
}

TEST(Multiply, TrainingProblemsAreAFunctionOfSeedAndIndex) {
  const MultiplyTask task({});
  EXPECT_EQ(task.train_problem(1, 7).prompt, task.train_problem(1, 7).prompt);
  EXPECT_EQ(task.train_problem(1, 7).index, 7);
  std::set<std::string> prompts;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (int64_t i = 0; i < 10; ++i) {
      prompts.insert(task.train_problem(seed, i).prompt);
    }
  }
  EXPECT_GT(prompts.size(), 90U);
}

TEST(Multiply, VocabularyCoversPromptsAndSolutions) {
  const MultiplyTask task({.first_digits = 3, .noise = 0.3});
  const CharacterTokenizer tokenizer(*task.vocabulary());
  EXPECT_EQ(tokenizer.vocab_size(), 15);
  EXPECT_EQ(tokenizer.decode(std::vector{*tokenizer.eos_id()}), "$");
  for (int64_t i = 0; i < 100; ++i) {
    const Problem p = task.train_problem(1, i);
    const std::string text = p.prompt + *task.solution(p, 1);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Multiply, OptionsAreChecked) {
  EXPECT_EQ(make_task("multiply", {{"first_digits", 3}})->train_problem(1, 0).prompt.size(), 7U);
  EXPECT_THROW(make_task("multiply", {{"first_digits", 0}}), Error);
  EXPECT_THROW(make_task("multiply", {{"second_digits", 7}}), Error);
  EXPECT_THROW(make_task("multiply", {{"noise", 1.5}}), Error);
  EXPECT_THROW(make_task("multiply", {{"noise", "much"}}), Error);
  EXPECT_THROW(make_task("multiply", {{"digits", 2}}), Error);
  EXPECT_THROW(make_task("divide", Json::object()), Error);
  EXPECT_EQ(task_names(), (std::vector<std::string>{"multiply"}));
}

}  // namespace
}  // namespace quads
