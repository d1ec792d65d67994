// Lines of data files as slime, verl and benchmarks write them, read as problems.
#include "tasks/problem_format.h"

#include <gtest/gtest.h>

#include "io/test_files.h"
#include "tasks/benchmark.h"

namespace quads {
namespace {

Problem read(const std::string& line, const ProblemFormat& format = {}) {
  return read_problem(parse_json(line, "f:1"), format, "f:1");
}

std::string message(const std::string& line, const ProblemFormat& format = {}) {
  return error_of([&] { read(line, format); });
}

bool no_label(const Json* /*metadata*/) { return false; }

TEST(ProblemFormat, SlimesFieldsAreFound) {
  const Problem p = read(R"({"prompt":"1+1?","label":"2","metadata":{"level":3},"other":[1]})");
  EXPECT_EQ(p.prompt, "1+1?");
  EXPECT_EQ(p.label, "2");
  ASSERT_TRUE(p.metadata);
  EXPECT_EQ(*p.metadata, (Json{{"level", 3}}));
  EXPECT_FALSE(read(R"({"prompt":"1+1?","label":"2"})").metadata);
  EXPECT_FALSE(read(R"({"prompt":"1+1?","label":"2","metadata":null})").metadata);
}

TEST(ProblemFormat, VerlsFieldsAreFound) {
  const Problem p = read(
      R"({"data_source":"openai/gsm8k","prompt":[{"role":"user","content":"1+1?"}],
          "reward_model":{"style":"rule","ground_truth":["2"]},
          "extra_info":{"split":"train","index":0}})",
      {.apply_chat_template = true});
  EXPECT_EQ(p.prompt, "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(p.label, "2");
  EXPECT_EQ(*p.metadata, (Json{{"split", "train"}, {"index", 0}, {"data_source", "openai/gsm8k"}}));
}

TEST(ProblemFormat, NamedFieldsMayLeadIntoObjectsOrHaveDots) {
  const ProblemFormat format{
      .input_key = "a.b", .label_key = "c.d.e", .metadata_key = "extra_info"};
  const Problem p = read(
      R"({"a.b":"whole","a":{"b":"inner"},"c":{"d.e":"5"},"extra_info":{"x":1},
          "metadata":{"x":2}})",
      format);
  EXPECT_EQ(p.prompt, "whole");
  EXPECT_EQ(p.label, "5");
  EXPECT_EQ(*p.metadata, (Json{{"x", 1}}));
  EXPECT_EQ(read(R"({"a":{"b":"inner"},"c":{"d":{"e":"5"}}})", format).prompt, "inner");
  // What is named is not looked for under another name.
  expect_contains(message(R"({"prompt":"x","c.d.e":"5"})", format), "f:1: key 'a.b' is missing");
  expect_contains(message(R"({"a":{"b":"x"},"label":"5"})", format), "key 'c.d.e' is missing");
  expect_contains(message(R"({"a":["b"],"label":"5"})", format), "key 'a.b' is missing");
}

TEST(ProblemFormat, LabelsMayBeNumbersAndListsOfOne) {
  const auto label = [](const std::string& text, const ProblemFormat& format = {}) {
    return read(R"({"prompt":"p","label":)" + text + "}", format).label;
  };
  EXPECT_EQ(label("204"), "204");
  EXPECT_EQ(label("-0.5"), "-0.5");
  EXPECT_EQ(label("true"), "true");
  EXPECT_EQ(label(R"([" 2 "])"), " 2 ");
  EXPECT_EQ(label("[7]"), "7");
  const auto bad = [](const std::string& text) {
    return message(R"({"prompt":"p","label":)" + text + "}");
  };
  expect_contains(bad("null"), "key 'label' is missing");
  expect_contains(bad(R"(["1","2"])"), R"(f:1: 'label': ["1","2"] is not a text, a number)");
  expect_contains(bad("[]"), "'label': [] is not");
  expect_contains(bad(R"({"a":1})"), "'label'");
  const ProblemFormat free{.needs_label = no_label};
  EXPECT_EQ(label(R"({"inputs":["1"]})", free), R"({"inputs":["1"]})");
  EXPECT_EQ(read(R"({"prompt":"p"})", free).label, "");
}

TEST(ProblemFormat, WhetherALabelIsNeededDependsOnTheMetadata) {
  const ProblemFormat format{.needs_label = [](const Json* metadata) {
    if (metadata != nullptr && metadata->contains("strange")) fail("strange metadata");
    return metadata == nullptr || metadata->value("data_source", "") != "code";
  }};
  EXPECT_EQ(read(R"({"prompt":"p","data_source":"code"})", format).label, "");
  expect_contains(message(R"({"prompt":"p","data_source":"math"})", format), "'label' is missing");
  expect_contains(message(R"({"prompt":"p","metadata":{"strange":1}})", format),
                  "f:1: strange metadata");
}

TEST(ProblemFormat, MetadataMustBeAnObjectOrATextThatIsOne) {
  EXPECT_EQ(*read(R"({"prompt":"p","label":"1","metadata":"{\"a\":1}"})").metadata,
            (Json{{"a", 1}}));
  const auto bad = [](const std::string& text) {
    return message(R"({"prompt":"p","label":"1","metadata":)" + text + "}");
  };
  expect_contains(bad("[1]"), "f:1: 'metadata': [1] is not an object");
  expect_contains(bad("3"), "is not an object");
  expect_contains(bad(R"("{")"), "f:1: 'metadata': not valid JSON");
}

TEST(ProblemFormat, AListOfMessagesWithoutATemplateIsAnErrorThatSaysWhatToDo) {
  const std::string text = message(R"({"prompt":[{"role":"user","content":"x"}],"label":"1"})");
  expect_contains(text, "f:1: 'prompt' is a list of messages");
  expect_contains(text, "--apply-chat-template");
}

TEST(ProblemFormat, ATextUnderAChatTemplateIsTheUsersMessage) {
  const ProblemFormat format{
      .prompt_template = "Q: {prompt}!", .apply_chat_template = true, .enable_thinking = false};
  EXPECT_EQ(read(R"({"prompt":"{prompt}","label":"1"})", format).prompt,
            "<|im_start|>user\nQ: {prompt}!<|im_end|>\n<|im_start|>assistant\n"
            "<think>\n\n</think>\n\n");
  expect_contains(message(R"({"prompt":"x","label":"1"})", {.prompt_template = "no place"}),
                  "'no place' has no {prompt}");
}

TEST(ProblemFormat, BenchmarksOfAnswersAreAskedForABox) {
  const TempDir dir;
  write_text(dir / "aime.jsonl", "\n{\"id\":60,\"problem\":\"What?\",\"answer\":204}\n");
  const BenchmarkForm form = benchmark_form(dir / "aime.jsonl");
  EXPECT_EQ(form.reward, "math");
  const Problem p = read(R"({"id":60,"problem":"What?","answer":204})",
                         {.prompt_template = form.prompt_template});
  EXPECT_EQ(p.prompt,
            "What?\n\nPlease reason step by step, and put your final answer within \\boxed{}.");
  EXPECT_EQ(p.label, "204");
}

TEST(ProblemFormat, LiveCodeBenchsProblemsKeepTheirTestCasesAndAreAskedInItsWords) {
  const TempDir dir;
  const std::string program =
      R"({"question_content":"Add.","question_id":"a_1","starter_code":"","platform":"atcoder",)"
      R"("public_test_cases":"[{\"input\":\"1\",\"output\":\"2\",\"testtype\":\"stdin\"}]",)"
      R"("metadata":"{}"})";
  const std::string function =
      R"({"question_content":"Add.","starter_code":"class Solution:","public_test_cases":"[]",)"
      R"("metadata":"{\"func_name\":\"add\"}"})";
  write_text(dir / "lcb.jsonl", program + "\n");
  const BenchmarkForm form = benchmark_form(dir / "lcb.jsonl");
  EXPECT_EQ(form.reward, "code");
  ProblemFormat format{.live_code_bench_prompts = form.live_code_bench, .needs_label = no_label};
  const Problem text = read(program, format);
  EXPECT_TRUE(text.prompt.starts_with("You are an expert Python programmer."));
  expect_contains(text.prompt, "\n\n### Question:\nAdd.\n\n### Format: Read the inputs from stdin");
  EXPECT_TRUE(text.metadata->contains("public_test_cases"));
  EXPECT_EQ((*text.metadata)["question_id"], "a_1");
  EXPECT_FALSE(text.metadata->contains("question_content"));
  format.apply_chat_template = true;
  const Problem chat = read(function, format);
  EXPECT_TRUE(chat.prompt.starts_with("<|im_start|>system\nYou are an expert"));
  expect_contains(chat.prompt, "```python\nclass Solution:\n```");
  EXPECT_EQ((*chat.metadata)["func_name"], "add");
}

TEST(BenchmarkForm, OtherFilesAreAnError) {
  const TempDir dir;
  const auto error = [&](const std::string& text) {
    write_text(dir / "b.jsonl", text);
    return error_of([&] { benchmark_form(dir / "b.jsonl"); });
  };
  expect_contains(error("{\"prompt\":\"p\",\"label\":\"1\"}\n"), "b.jsonl:1: neither 'answer'");
  expect_contains(error("7\n"), "b.jsonl:1: neither 'answer'");
  expect_contains(error("{\n"), "b.jsonl:1: not valid JSON");
  expect_contains(error(""), "no problems in it");
}

}  // namespace
}  // namespace quads
