// Problems from files: order, split, what is left out, and errors with file and line.
#include "tasks/jsonl_task.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "io/test_files.h"

namespace quads {
namespace {

std::string lines(const std::string& prefix, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += fmt::format("{{\"prompt\":\"{0}{1}\",\"label\":\"{1}\"}}\n", prefix, i);
  }
  return text;
}

TEST(JsonlTask, EveryPassIsTheWholeFileInANewOrder) {
  const TempDir dir;
  write_text(dir / "t.jsonl", lines("p", 20));
  const JsonlTask task({.train = dir / "t.jsonl"});
  std::vector<std::string> passes;
  for (int64_t pass = 0; pass < 3; ++pass) {
    std::set<std::string> prompts;
    std::string order;
    for (int64_t i = 0; i < 20; ++i) {
      const Problem p = task.train_problem(1, pass * 20 + i);
      EXPECT_EQ(p.index, pass * 20 + i);
      EXPECT_EQ(p.prompt, "p" + p.label);
      prompts.insert(p.prompt);
      order += p.prompt;
    }
    EXPECT_EQ(prompts.size(), 20U);
    passes.push_back(order);
  }
  EXPECT_NE(passes[0], passes[1]);
  EXPECT_NE(passes[1], passes[2]);
  EXPECT_EQ(task.num_eval_problems(), 0);
  EXPECT_EQ(task.num_skipped(), 0);
}

TEST(JsonlTask, TheOrderIsAFunctionOfSeedAndIndexSoThatARunContinuesInMidPass) {
  const TempDir dir;
  write_text(dir / "t.jsonl", lines("p", 20));
  const JsonlTask first({.train = dir / "t.jsonl"}), again({.train = dir / "t.jsonl"});
  for (int64_t i = 7; i < 50; ++i) {
    EXPECT_EQ(first.train_problem(5, i).prompt, again.train_problem(5, i).prompt);
  }
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    std::string order;
    for (int64_t i = 0; i < 20; ++i) order += first.train_problem(seed, i).prompt;
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 5U);
}

TEST(JsonlTask, WithoutShufflingItIsTheFilesOrderEachTime) {
  const TempDir dir;
  write_text(dir / "t.jsonl", lines("p", 3));
  const JsonlTask task({.train = dir / "t.jsonl", .shuffle = false});
  std::string order;
  for (int64_t i = 0; i < 7; ++i) order += task.train_problem(9, i).prompt;
  EXPECT_EQ(order, "p0p1p2p0p1p2p0");
}

TEST(JsonlTask, EvaluationFileKeepsItsOrderAndMustBeDisjoint) {
  const TempDir dir;
  write_text(dir / "t.jsonl", lines("p", 3));
  write_text(dir / "e.jsonl", lines("q", 5));
  const JsonlTask task({.train = dir / "t.jsonl", .eval = dir / "e.jsonl"});
  ASSERT_EQ(task.num_eval_problems(), 5);
  EXPECT_EQ(task.eval_problem(3).prompt, "q3");
  EXPECT_EQ(task.eval_problem(3).index, 3);
  EXPECT_THROW(task.eval_problem(5), Error);

  write_text(dir / "e.jsonl", lines("q", 2) + lines("p", 1));
  expect_contains(error_of([&] { JsonlTask({.train = dir / "t.jsonl", .eval = dir / "e.jsonl"}); }),
                  "e.jsonl:3: this prompt is also in the training file");
  const JsonlTask skipping(
      {.train = dir / "t.jsonl", .eval = dir / "e.jsonl", .skip_bad_data = true});
  EXPECT_EQ(skipping.num_eval_problems(), 2);
  EXPECT_EQ(skipping.num_skipped(), 1);
}

TEST(JsonlTask, ErrorsNameFileAndLine) {
  const TempDir dir;
  const auto message = [&](const std::string& text) {
    write_text(dir / "t.jsonl", text);
    return error_of([&] { JsonlTask task({.train = dir / "t.jsonl"}); });
  };
  const std::string good = lines("p", 1);
  expect_contains(message(good + "{\"prompt\":\"x\"}\n"), "t.jsonl:2: key 'label' is missing");
  expect_contains(message(good + "{\"prompt\":3,\"label\":\"\"}\n"), "t.jsonl:2: 'prompt': 3");
  expect_contains(message(good + "{\"prompt\":\"\",\"label\":\"\"}\n"), "'prompt' is empty");
  expect_contains(message(good + "[]\n"), "t.jsonl:2: [] is not an object");
  expect_contains(message(good + "{\n"), "t.jsonl:2: not valid JSON");
  expect_contains(message(good + "{\"prompt\":\"\xff\",\"label\":\"\"}\n"), "t.jsonl:2: ");
  expect_contains(message(good + std::string(100'000, '[')), "t.jsonl:2: ");
  expect_contains(message("\n\n"), "no problems in it");
  expect_contains(message(""), "no problems in it");
  expect_contains(error_of([&] { JsonlTask task({}); }), "neither --prompt-data nor --eval-data");
  write_text(dir / "e.jsonl", good);
  const JsonlTask only_eval({.eval = dir / "e.jsonl"});
  expect_contains(error_of([&] { only_eval.train_problem(1, 0); }), "no training file");
}

TEST(JsonlTask, APromptThatCannotBeEncodedIsAMalformedLine) {
  const TempDir dir;
  write_text(dir / "t.jsonl", lines("p", 3));
  const auto count = [](std::string_view text) -> int64_t {
    require(text != "p1", "no token for it");
    return 1;
  };
  JsonlOptions options{.train = dir / "t.jsonl", .count_tokens = count};
  const std::string message = "t.jsonl:2: the prompt: no token for it";
  expect_contains(error_of([&] { JsonlTask task(options); }), message);
  options.skip_bad_data = true;
  const JsonlTask task(options);
  EXPECT_EQ(task.skipped().bad, 1);
  ASSERT_EQ(task.skipped().first.size(), 1U);
  expect_contains(task.skipped().first[0], message);
}

TEST(JsonlTask, SkippedLinesAreCountedAndTheFirstTenListed) {
  const TempDir dir;
  std::string text = lines("p", 2) + "{\"prompt\": \"cut off\n";
  for (int i = 0; i < 11; ++i) text += "{\"label\":\"1\"}\n";
  write_text(dir / "t.jsonl", text + "{\"prompt\":\"last\",\"label\":\"1\"}");
  const JsonlTask task({.train = dir / "t.jsonl", .skip_bad_data = true, .shuffle = false});
  EXPECT_EQ(task.skipped().bad, 12);
  EXPECT_EQ(task.num_skipped(), 12);
  ASSERT_EQ(task.skipped().first.size(), 10U);
  expect_contains(task.skipped().first[0], "t.jsonl:3: not valid JSON");
  expect_contains(task.skipped().first[9], "t.jsonl:12: key 'prompt' is missing");
  EXPECT_EQ(task.train_problem(1, 2).prompt, "last");
  EXPECT_EQ(task.train_problem(1, 3).prompt, "p0");
}

TEST(JsonlTask, AFileOfWhichNothingIsLeftIsAnErrorWithTheCause) {
  const TempDir dir;
  write_text(dir / "t.jsonl", "{}\n{}\n");
  expect_contains(error_of([&] { JsonlTask({.train = dir / "t.jsonl", .skip_bad_data = true}); }),
                  "all 2 lines were left out; first: " + (dir / "t.jsonl").string() +
                      ":1: key 'prompt' is missing");
}

TEST(JsonlTask, LongPromptsAreLeftOutWhetherOrNotBadDataAre) {
  const TempDir dir;
  write_text(dir / "t.jsonl", lines("p", 1) + lines("long prompt ", 2));
  const auto count = [](std::string_view text) { return std::ssize(text); };
  const JsonlTask task({.train = dir / "t.jsonl", .max_prompt_tokens = 2, .count_tokens = count});
  EXPECT_EQ(task.skipped().too_long, 2);
  EXPECT_EQ(task.train_problem(1, 5).prompt, "p0");
  expect_contains(task.skipped().first[0], "t.jsonl:2: the prompt has 13 tokens, more than 2");
  EXPECT_THROW(JsonlTask({.train = dir / "t.jsonl", .max_prompt_tokens = 2}), Error);
}

TEST(JsonlTask, NamesTheRewardsThatItsProblemsAskFor) {
  const TempDir dir;
  write_text(dir / "t.jsonl", lines("p", 2) +
                                  R"({"prompt":"a","label":"1","metadata":{"rm_type":"code"}})"
                                  "\n"
                                  R"({"prompt":"b","label":"1","metadata":{"rm_type":"math"}})"
                                  "\n"
                                  R"({"prompt":"c","label":"1","metadata":{"rm_type":"math"}})"
                                  "\n");
  EXPECT_EQ(JsonlTask({.train = dir / "t.jsonl"}).reward_types(),
            (std::set<std::string>{"code", "math"}));
}

}  // namespace
}  // namespace quads
