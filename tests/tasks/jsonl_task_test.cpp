// Problems from files: order, reward, split, and errors with file and line.
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
  const auto task = make_task("jsonl", {{"train", (dir / "t.jsonl").string()}});
  std::vector<std::string> passes;
  for (int64_t pass = 0; pass < 3; ++pass) {
    std::set<std::string> prompts;
    std::string order;
    for (int64_t i = 0; i < 20; ++i) {
      const Problem p = task->train_problem(1, pass * 20 + i);
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
  EXPECT_EQ(task->num_eval_problems(), 0);
}

TEST(JsonlTask, RewardIsAnExactMatchButForOuterWhiteSpace) {
  const TempDir dir;
  write_text(dir / "t.jsonl", lines("p", 1));
  const JsonlTask task({.train = dir / "t.jsonl"});
  const Problem p{0, "p", " a b\n"};
  for (const char* right : {"a b", " a b ", "\ta b\n\n"}) {
    EXPECT_EQ(task.reward(p, right), 1.0) << right;
  }
  for (const char* wrong : {"", "a", "ab", "a  b", "A b", "a b$", "a b."}) {
    EXPECT_EQ(task.reward(p, wrong), 0.0) << wrong;
  }
  const JsonlTask stopping({.train = dir / "t.jsonl", .stop = "$"});
  EXPECT_EQ(stopping.reward(p, "a b $"), 1.0);
  EXPECT_EQ(stopping.reward(p, "a b"), 1.0);
  EXPECT_EQ(stopping.reward(p, "a b$$"), 0.0);
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
  expect_contains(message(good + "{\"prompt\":\"a\",\"label\":1}\n"), "'label': 1 is not a string");
  expect_contains(message(good + "[]\n"), "t.jsonl:2: [] is not an object");
  expect_contains(message(good + "{\n"), "t.jsonl:2: not valid JSON");
  expect_contains(message("\n\n"), "no problems in it");
  expect_contains(error_of([&] { JsonlTask task({}); }), "neither 'train' nor 'eval'");
  expect_contains(error_of([&] { make_task("jsonl", {{"file", "x"}}); }), "unknown option 'file'");
  write_text(dir / "e.jsonl", good);
  const JsonlTask only_eval({.eval = dir / "e.jsonl"});
  expect_contains(error_of([&] { only_eval.train_problem(1, 0); }), "no training file");
}

}  // namespace
}  // namespace quads
