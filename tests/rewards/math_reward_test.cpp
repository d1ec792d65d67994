// The math reward with checkers that answer, hang, end and lie: whose fault a missing verdict is.
#include "rewards/math_reward.h"

#include <gtest/gtest.h>

#include <atomic>

#include "rl/expect_error.h"

namespace quads {
namespace {

// A checker in Python, for which texts are equal that are written with the same letters; `body`
// sees the letters of label and answer first.
WorkerPoolOptions checker(const std::string& body = "pass") {
  return {
      .command = {"/usr/bin/python3", "-I", "-S", "-c",
                  "import json, os, sys, time\n"
                  "for line in sys.stdin:\n"
                  "  x = json.loads(line); label, answer = x['label'], x['answer']\n"
                  "  equal = sorted(label) == sorted(answer) or (label, answer) == ('2', '1+1')\n"
                  "  " +
                      body +
                      "\n"
                      "  print(json.dumps({'equal': equal}), flush=True)\n"},
      .workers = 2,
      .request_s = 20};
}

std::vector<RewardResult> score(Reward& reward, const std::string& label,
                                const std::vector<std::string>& answers) {
  std::vector<std::string> responses;
  for (const std::string& answer : answers) responses.push_back("\\boxed{" + answer + "}");
  std::vector<RewardRequest> requests;
  for (const std::string& response : responses) {
    requests.push_back({.response = response, .label = label});
  }
  return reward.score(requests);
}

std::vector<double> values(const std::vector<RewardResult>& results) {
  std::vector<double> all;
  for (const RewardResult& result : results) {
    EXPECT_EQ(result.failure, "");
    all.push_back(result.value);
  }
  return all;
}

TEST(MathReward, DecidesNumbersItselfAndAsksForTheRest) {
  MathReward reward(checker());
  EXPECT_EQ(values(score(reward, "x+y", {"y+x", "x + y", "x-y", "5", ""})),
            (std::vector<double>{1, 1, 0, 0, 0}));
  EXPECT_EQ(values(score(reward, "12", {"12.0", "21", "24/2"})), (std::vector<double>{1, 0, 1}));
}

TEST(MathReward, AsksOnceForEqualAnswers) {
  MathReward reward(
      checker("seen = globals().setdefault('seen', set())\n"
              "  if line in seen: os._exit(1)\n"
              "  if answer != '1+1': seen.add(line)"));
  const std::vector<std::string> same(50, "y+x");
  EXPECT_EQ(values(score(reward, "x+y", same)), std::vector<double>(50, 1.0));
}

TEST(MathReward, GivesNothingForNoAnswer) {
  MathReward reward(checker());
  const RewardRequest requests[] = {{.response = "no idea", .label = "x"},
                                    {.response = "\\boxed{x", .label = "x"},
                                    {.response = "", .label = "x"}};
  EXPECT_EQ(values(reward.score(requests)), (std::vector<double>{0, 0, 0}));
}

TEST(MathReward, FailsForALabelWithoutAnAnswer) {
  MathReward reward(checker());
  for (const char* label : {"", " ", "\\boxed{}"}) {
    const RewardRequest request{.response = "\\boxed{5}", .label = label};
    EXPECT_EQ(reward.score({&request, 1}).front().failure,
              fmt::format("math: the label '{}' has no answer", label));
  }
}

TEST(MathReward, IsZeroForAnAnswerThatHangsTheChecker) {
  WorkerPoolOptions options = checker("if answer == 'hang': time.sleep(1000)");
  options.request_s = 1;
  MathReward reward(std::move(options));
  EXPECT_EQ(values(score(reward, "ab", {"hang", "ba"})), (std::vector<double>{0, 1}));
}

TEST(MathReward, IsZeroForAnAnswerThatEndsTheChecker) {
  MathReward reward(checker("if answer == 'end': os._exit(3)"));
  EXPECT_EQ(values(score(reward, "ab", {"end", "ba"})), (std::vector<double>{0, 1}));
  EXPECT_EQ(values(score(reward, "ab", {"ba"})), (std::vector<double>{1}));
}

TEST(MathReward, FailsForALabelThatHangsOrEndsTheChecker) {
  WorkerPoolOptions options = checker(
      "if label == 'hang': time.sleep(1000)\n"
      "  if label == 'end': os._exit(3)");
  options.request_s = 1;
  MathReward reward(std::move(options));
  const std::string hangs = score(reward, "hang", {"x"}).front().failure;
  EXPECT_NE(hangs.find("cannot read the label 'hang'"), std::string::npos) << hangs;
  const std::string ends = score(reward, "end", {"x"}).front().failure;
  EXPECT_NE(ends.find("cannot read the label 'end'"), std::string::npos) << ends;
}

TEST(MathReward, AsksAgainAfterACheckerThatEndedByChance) {
  const std::string once = testing::TempDir() + "/math_reward_once";
  std::remove(once.c_str());
  MathReward reward(checker("if answer == 'ba' and not os.path.exists('" + once + "'): open('" +
                            once + "', 'w'); os._exit(3)"));
  EXPECT_EQ(values(score(reward, "ab", {"ba"})), (std::vector<double>{1}));
}

TEST(MathReward, FailsWhereTheCheckerSaysWhy) {
  MathReward reward(checker(
      "if label == 'bad': print(json.dumps({'error': 'cannot read bad'}), flush=True); continue"));
  const std::vector<RewardResult> results = score(reward, "bad", {"x", "bad"});
  EXPECT_EQ(results[0].failure, "cannot read bad");
  EXPECT_EQ(results[1].failure, "");  // equal texts need no checker
  EXPECT_EQ(results[1].value, 1);
}

TEST(MathReward, FailsWhereThePoolDies) {
  const std::string dead = testing::TempDir() + "/math_reward_dead";
  std::remove(dead.c_str());
  MathReward reward(checker("if answer == 'last': open('" + dead +
                            "', 'w')\n"
                            "  if os.path.exists('" +
                            dead + "'): os._exit(3)"));
  const std::vector<RewardResult> results = score(reward, "ab", {"last", "ab"});
  EXPECT_NE(results[0].failure.find("cannot read the label 'ab'"), std::string::npos)
      << results[0].failure;
  EXPECT_NE(results[0].failure.find("status 3"), std::string::npos) << results[0].failure;
  EXPECT_EQ(results[1].failure, "");
  EXPECT_EQ(results[1].value, 1);
}

TEST(MathReward, RefusesACheckerThatIsWrongOrDoesNotStart) {
  EXPECT_EQ(
      error_of([] { MathReward reward(checker("equal = True")); }),
      "math: the checker does not work: asked {\"answer\":\"1+1\",\"label\":\"3\"}, it answered "
      "{\"equal\": true}; --rm-python names a Python with math-verify 0.9.0");
  expect_error([] { MathReward reward(checker("equal = 'yes'")); },
               "it answered {\"equal\": \"yes\"}");
  const char* missing = "import sys\nsys.exit('no math-verify here')";
  expect_error(
      [&] {
        MathReward reward({.command = {"/usr/bin/python3", "-c", missing}});
      },
      "no math-verify here");
  const std::string error =
      error_of([] { make_math_reward({.python = "/nonexistent/python", .workers = 1}); });
  EXPECT_NE(error.find("/nonexistent/python"), std::string::npos) << error;
  EXPECT_TRUE(error.ends_with("; --rm-python names a Python with math-verify 0.9.0")) << error;
  EXPECT_EQ(error.find("import"), std::string::npos) << error;  // not the worker's source
}

TEST(MathReward, SendsBytesThatAreNotUtf8AsReplacements) {
  MathReward reward(checker());
  EXPECT_EQ(values(score(reward, "ab", {"\xFF\xFE", std::string("a\0b", 3), "a\nb"})).size(), 3U);
}

TEST(MathReward, EndsWhenTheUserStopsTheProgram) {
  std::atomic<bool> cancel = false;
  WorkerPoolOptions options = checker();
  options.cancel = &cancel;
  MathReward reward(std::move(options));
  cancel = true;
  EXPECT_THROW(score(reward, "ab", {"ba"}), Interrupted);
}

TEST(MathReward, HasANormalFormOfTheAnswer) {
  MathReward reward(checker());
  EXPECT_EQ(reward.normal_answer({.response = "\\boxed{\\frac{2}{4}}"}), "1/2");
  EXPECT_EQ(reward.normal_answer({.response = "no idea"}), std::nullopt);
}

}  // namespace
}  // namespace quads
